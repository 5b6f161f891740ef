"""Where the secrets of a running server can be read: each is searched for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import redis

from tollgate.errors import ServerError
from tollgate.server.address import Address, find_server
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.triton import control
from tollgate.server.triton.control import Endpoint
from tollgate.supervisor.admin_port import PAGES
from tollgate.supervisor.bundle import write_bundle

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
PASSWORD = "PwMarkerXq77"
KEY = "TOLLGATE_CONTEXT_KEY="
PATIENCE_S = 180.0


class Running(msgspec.Struct, frozen=True):
    """`tollgate up` in a folder, and what is secret there."""

    folder: Path
    process: int
    address: Address
    secrets: Mapping[str, str]

    def found_in(self, text: bytes) -> set[str]:
        """Name the secrets that stand in a text."""
        return {name for name, one in self.secrets.items() if one.encode() in text}


def family(process: int) -> list[int]:
    """A process and all that it started."""
    found = [process]
    for one in found:
        for path in Path("/proc", str(one), "task").glob("*/children"):
            found += [int(child) for child in path.read_text().split()]
    return found


def proc(process: int, name: str) -> bytes:
    """Read a file of a process."""
    return Path("/proc", str(process), name).read_bytes()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose store wants a password; stopped afterwards."""
    folder = tmp_path_factory.mktemp("secrets")
    state = folder / "state"
    command = [sys.executable, "-c", "from tollgate.cli import main; main()", "up"]
    for option in ("grpc-port", "metrics-port", "side-port"):
        command += [f"--{option}", "0"]
    command += ["--repository", str(CHECKOUT / "model_repository")]
    with EmbeddedRedis(folder / "store") as store, (folder / "said").open("wb") as said:
        rights = ("on", f">{PASSWORD}", "~*", "&*", "+@all")
        with redis.Redis.from_url(store.url) as client:
            client.execute_command("ACL", "SETUSER", "worker", *rights)
        url = store.url.replace("unix://", f"unix://worker:{PASSWORD}@", 1)
        process = subprocess.Popen(
            [*command, "--state", str(state)],
            cwd=folder,
            env=os.environ | {"TOLLGATE_STORE_URL": url},
            stdout=said,
            stderr=said,
            umask=0o022,
        )
        try:
            until = time.monotonic() + PATIENCE_S
            while b"READY" not in (folder / "said").read_bytes():
                assert process.poll() is None, (folder / "said").read_text()
                assert time.monotonic() < until, (folder / "said").read_text()
                time.sleep(0.2)
            address = find_server(state)
            assert address is not None
            variables = proc(address.pid, "environ").decode().split("\0")
            (key,) = [one for one in variables if one.startswith(KEY)]
            secrets = {
                "store password": PASSWORD,
                "admin secret": address.admin_secret,
                "private suffix": address.private_suffix,
                "context key": key.removeprefix(KEY),
            }
            yield Running(folder, process.pid, address, secrets)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


def test_no_page_has_a_secret(running: Running) -> None:
    """Every page of the admin port and of the metrics port, and what is not there."""
    metrics = running.address.metrics_url
    admin = running.address.side_port_url
    named = [page.replace("PRODUCT", "fraud") for page in PAGES]
    for url in (metrics, f"{metrics}/no", *(admin + one for one in (*named, "/no"))):
        try:
            with urllib.request.urlopen(url) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
        assert text
        assert running.found_in(text) == set(), url


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_admin_port_only_answers_reads(running: Running, method: str) -> None:
    """It has no secret, so nothing can be changed there."""
    for page in PAGES:
        url = running.address.side_port_url + page.replace("PRODUCT", "fraud")
        request = urllib.request.Request(url, data=b"{}", method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value:
            assert refused.value.code == 501


def test_command_lines_have_no_store_password_and_no_key(running: Running) -> None:
    """Every user reads these: Triton's has its admin secret, a step's its own name."""
    shown = {}
    for one in family(running.process):
        words = proc(one, "cmdline")
        name = Path(words.split(b"\0")[0].decode()).name
        shown.setdefault(name, set()).update(running.found_in(words))
    assert shown.pop("tritonserver") == {"admin secret"}
    assert shown.pop("triton_python_backend_stub") == {"private suffix"}
    assert shown
    assert set().union(*shown.values()) == set()


def test_environments_are_read_by_the_same_user_alone(running: Running) -> None:
    """The steps have store password and context key; no one has the admin secret."""
    seen = set()
    for one in family(running.process):
        path = Path("/proc", str(one), "environ")
        assert path.stat().st_mode & 0o077 == 0
        seen |= running.found_in(path.read_bytes())
    assert seen == {"store password", "context key"}


def test_other_users_cannot_read_what_the_state_folder_keeps(running: Running) -> None:
    """Logs, copies of models, store, spools and journal; server.json has them all."""
    state = running.folder / "state"
    address = (state / "server.json").stat()
    assert address.st_mode & 0o077 == 0
    folders = [state / name for name in ("logs", "served")]
    folders += [state / "spool" / "fraud", state / "journal-spool" / "fraud"]
    folders += [running.folder / "store" / name for name in ("redis", "logs")]
    for one in folders:
        assert one.stat().st_mode & 0o077 == 0, one


def test_no_log_and_no_message_has_a_secret(running: Running) -> None:
    """Steps are logged by Triton under private names; a bundle shows public ones."""
    stranger = Endpoint(running.address.grpc_url, {"triton-grpc-protocol-admin": "no"})
    with pytest.raises(ServerError) as refused:
        control.load_model(stranger, "fraud", config=None)
    assert running.found_in(str(refused.value).encode()) == set()
    state = running.folder / "state"
    logs = {path.name: path.read_bytes() for path in (state / "logs").iterdir()}
    assert running.found_in(logs.pop("triton.log")) == {"private suffix"}
    logs["said"] = (running.folder / "said").read_bytes()
    logs |= {path.name: path.read_bytes() for path in state.glob("*.json*")}
    del logs["server.json"]
    for name, text in logs.items():
        assert running.found_in(text) == set(), name
    out = running.folder / "bundle.tar.gz"
    write_bundle(out, state=state, repository=CHECKOUT / "model_repository")
    with tarfile.open(out) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            assert running.found_in(file.read()) == set(), member.name


def test_a_printed_address_has_no_secret(running: Running) -> None:
    """As a log or a traceback would show it."""
    assert running.found_in(repr(running.address).encode()) == set()
    text = json.dumps(msgspec.to_builtins(running.address)).encode()
    assert running.found_in(text) == set(running.secrets) - {"context key"}

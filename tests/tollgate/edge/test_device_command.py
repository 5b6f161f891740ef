"""`tollgate edge run` serves a bundle until it is stopped, in little memory."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.edge.bundles import Keys
from tollgate_client import Client

PROGRAM = (sys.executable, "-c", "from tollgate.cli import main; main()")
ROW = {
    "transaction_id": ["p-1"],
    "customer_id": ["alice"],
    "terminal_id": ["shop"],
    "amount": [12.34],
    "event_time": [time.time_ns() // 1000],
}


@pytest.fixture(scope="module")
def words(keys: Keys, bundle: Path) -> list[str]:
    """Return the words of the command, up to the state folder."""
    return ["edge", "run", str(bundle), "--key", str(keys.public), "--state"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command; its address and its process."""
    child = subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        line = child.stderr.readline()
        assert line.startswith("fraud-1 of fraud on "), line + child.stderr.read()
        yield line.partition(" on ")[2].partition(";")[0], child
    finally:
        child.kill()
        child.communicate()


def test_modules_of_the_folder_it_runs_in_are_not_imported(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write there cannot run code as the device."""
    (tmp_path / "pygrpc_native.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with running(*words, str(tmp_path / "state"), "--listen", "127.0.0.1:0") as found:
        address, _ = found
        with Client(address, product="fraud", timeout_s=60.0) as client:
            assert client.decide(ROW).decision[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_decides_until_a_signal(
    number: signal.Signals, *, words: list[str], tmp_path: Path
) -> None:
    """The journal is sealed then, and the exit status is 0."""
    state = tmp_path / "state"
    with running(*words, str(state), "--listen", "127.0.0.1:0") as (address, child):
        with Client(address, product="fraud", timeout_s=60.0) as client:
            answer = client.decide(ROW)
        assert answer.decision.tolist() == ["approve"]
        child.send_signal(number)
        assert child.wait(60) == 0
    assert len(list((state / "journal" / "fraud").glob("*.spool"))) == 1


def test_a_limit_may_be_infinite(words: list[str], tmp_path: Path) -> None:
    """Then it is none."""
    limits = ("--resident-mib", "inf", "--late-ms", "inf", "--seal-after", "inf")
    place = ("--listen", "127.0.0.1:0")
    with running(*words, str(tmp_path / "state"), *place, *limits) as (address, child):
        with Client(address, product="fraud", timeout_s=60.0) as client:
            assert client.decide(ROW).decision.tolist() == ["approve"]
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0


def test_a_port_in_use_is_refused_before_anything_is_written(
    words: list[str], tmp_path: Path
) -> None:
    """One line, exit status 2, no state folder."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*PROGRAM, *words, str(tmp_path / "state"), "--listen", place],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert place.rpartition(":")[2] in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--resident-mib", "-1"], "--resident-mib: -1 is not above 0"),
        (["--late-ms", "nan"], "nan is no number"),
        (["--spool-mib", "1"], "--spool-mib"),
        (["--stat", "x"], "--state"),
        (["--http", "nonsense"], "--http: 'nonsense' is not address:port"),
        (["--http", "127.0.0.1:99999"], "'127.0.0.1:99999' is not address:port"),
        (["--http", ":8080"], "':8080' is not address:port"),
        (["--listen", "127.0.0.1:80x"], "--listen: '127.0.0.1:80x' is not"),
    ],
)
def test_a_wrong_option_is_one_line(
    arguments: list[str], text: str, *, words: list[str], tmp_path: Path
) -> None:
    """As of every other command."""
    state = tmp_path / "state"
    done = subprocess.run(
        [*PROGRAM, *words, str(state), "--listen", "127.0.0.1:0", *arguments],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr
    assert not state.exists()


def test_it_imports_no_other_command() -> None:
    """Tables, progress bars and the store's client would double the start."""
    code = (
        "import sys, json; sys.argv = ['tollgate', 'edge', 'run', '--help']\n"
        "import tollgate.cli as cli; cli._app()\n"
        "import tollgate.edge.grpc_port\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert "tollgate.edge.device" in loaded
    assert not loaded & {
        "redis",
        "polars",
        "jinja2",
        "rich.progress",
        "tollgate.cli.app",
    }

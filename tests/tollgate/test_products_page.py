"""The commands of docs/products.md and docs/shop.md, run by a new user in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import checkout_environment
from tollgate.server.address import find_server

CHECKOUT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(python|sh|server|stop|output)\n(.*?)```", re.DOTALL)
ADDRESS = "127.0.0.1:8001"  # on the pages

pytestmark = pytest.mark.slow


class Newcomer:
    """A new user with an empty folder, a shell, and the page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = Path(sys.executable).parent
        self._environment = {
            **checkout_environment(),
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        self._server: subprocess.Popen[bytes] | None = None
        self.printed = ""
        # Ports of the page may be taken here.
        (folder / "tollgate.yaml").write_text("grpc_port: 0\nmetrics_port: 0\n")

    def python(self, text: str) -> None:
        """Run a script; a call goes to the address of the server."""
        found = find_server(self._folder / ".tollgate")
        if found is not None:
            text = text.replace(ADDRESS, found.grpc_url)
        self._run([sys.executable, "-c", text])

    def sh(self, text: str) -> None:
        """Run commands; a call goes to the address of the server."""
        found = find_server(self._folder / ".tollgate")
        if found is not None:
            text = text.replace("/ask.py", f"/ask.py {found.grpc_url}")
        self._run(["bash", "-ec", text])

    def server(self, text: str) -> None:
        """Start a server, and wait until it is ready."""
        with (self._folder / "server.log").open("wb") as log:
            self._server = subprocess.Popen(
                ["bash", "-c", f"exec {text.strip()} --side-port 0"],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        while b"READY" not in (self._folder / "server.log").read_bytes():
            assert self._server.poll() is None, (
                self._folder / "server.log"
            ).read_text()
            time.sleep(0.1)

    def stop(self, text: str = "") -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait()

    def output(self, text: str) -> None:
        """Compare the page with the output of the last command."""
        for line in text.splitlines():
            assert line in self.printed.splitlines(), self.printed

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.printed = done.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    """Return a new user in an empty folder."""
    found = Newcomer(tmp_path)
    yield found
    found.stop()


def follow(page: str, newcomer: Newcomer) -> None:
    """Run every block of a page of docs/."""
    for kind, text in BLOCK.findall((CHECKOUT / "docs" / page).read_text()):
        getattr(newcomer, kind)(text)


def test_page_works_from_top_to_bottom(newcomer: Newcomer, tmp_path: Path) -> None:
    """Table, product, server, call, changes, removal, an external model."""
    follow("products.md", newcomer)
    assert list((tmp_path / "model_repository").iterdir()) == []


def test_a_shop_goes_from_events_to_explained_lists(newcomer: Newcomer) -> None:
    """Events, product, server, history, lists, explanation, stock."""
    follow("shop.md", newcomer)
    assert "i001" in newcomer.printed.split()

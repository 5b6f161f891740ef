"""A real mosquitto for tests: it can be killed, and started again on its data."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

LONG_S = 60.0

# The settings of docs/streams.md.
DURABLE = """\
persistence true
autosave_interval 1
max_queued_messages 0
"""


def free_port() -> int:
    """Find a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Mosquitto:
    """
    Run a broker on loopback, with its data in a folder.

    Args:
        settings: Lines of mosquitto.conf, besides listener and folder.
    """

    def __init__(self, folder: Path, *, settings: str = DURABLE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._file = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", settings]
        lines.append(f"user {getpass.getuser()}")  # root would become another user
        if "persistence true" in settings:
            lines.append(f"persistence_location {folder}/")
        self._file.write_text("\n".join(lines) + "\n")
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
        assert program is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(self._file)], stdout=log, stderr=log
            )
        until_s = time.monotonic() + LONG_S
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.01)
        raise AssertionError(self._log.read_text())

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it; it stores everything then."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

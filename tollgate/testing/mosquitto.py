"""Run a real mosquitto for tests, which may kill it and start it again on its data."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tollgate.errors import ServerError, SetupError

_START_S = 60.0

# The settings of docs/streams.md.
DURABLE = """\
persistence true
autosave_interval 1
max_queued_messages 0
set_tcp_nodelay true
"""


class Mosquitto:
    """
    An MQTT broker on loopback, with its data in a folder; use it as a context.

    Args:
        settings: Lines of mosquitto.conf, besides listener, user and folder.

    Raises:
        SetupError: This machine has no mosquitto.

    Attributes:
        url: Its address, mqtt://HOST:PORT.
    """

    def __init__(self, folder: Path, *, settings: str = DURABLE) -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
        if program is None:
            raise SetupError(
                "mosquitto is missing",
                remedy="install it, on Debian and Ubuntu: apt-get install mosquitto",
            )
        self._program = program
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"mqtt://127.0.0.1:{self.port}"
        lines = [f"listener {self.port} 127.0.0.1", settings]
        if "allow_anonymous" not in settings:
            lines.append("allow_anonymous true")
        lines.append(f"user {getpass.getuser()}")  # root would become another user
        if "persistence true" in settings:
            lines.append(f"persistence_location {folder}/")
        self._file = folder / "mosquitto.conf"
        self._file.write_text("\n".join(lines) + "\n")
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """
        Start it, and wait until it accepts connections.

        Raises:
            ServerError: It does not.
        """
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [self._program, "-c", str(self._file)], stdout=log, stderr=log
            )
        self._process = process
        until_s = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            time.sleep(0.01)
        raise ServerError("mosquitto", "did not start", log=self._log.read_text())

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
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

    def __exit__(self, *_: object) -> None:
        self.stop()

"""
Start child processes that do not outlive their parent.

A child is started through a tiny Python program that asks the kernel for a signal at
its parent's death and then becomes the child, so none of our code runs between fork and
exec of a process that has threads. The kernel means the parent *thread*, so each child
has its own thread here, which starts the child and waits for its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tollgate.errors import ServerError

# argv: our process id, the signal, then the program with its arguments.
_BECOME = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[2]), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execv(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.exit(f"error: {sys.argv[3]}: {error.strerror}")
"""


class Child:
    """
    Run a child process in its own process group.

    When this process dies, for whatever reason, the child gets SIGTERM.

    Args:
        argv: The program and its arguments; no shell.
        name: Name of the process in messages.
        env: Its complete environment.
        log: File that its standard output and error are appended to.
        keep_fds: File descriptors it inherits: a lock they hold is held until the last
            process of the group has ended.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str],
        log: Path,
        keep_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._argv = list(argv)
        self._env = dict(env)
        self._log = log
        self._keep_fds = tuple(keep_fds)
        self._popen: subprocess.Popen[bytes] | None = None
        self._problem: OSError | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._live, name=f"{name}-parent", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._popen is None:
            raise ServerError(name, f"did not start: {self._problem}")
        self.pid: int = self._popen.pid

    def _live(self) -> None:
        try:
            with self._log.open("ab") as log:
                self._popen = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-S", "-c", _BECOME),
                        *(str(os.getpid()), str(int(signal.SIGTERM))),
                        *self._argv,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    pass_fds=self._keep_fds,
                    start_new_session=True,
                )
        except OSError as error:
            self._problem = error
            return
        finally:
            self._started.set()
        self._popen.wait()

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self._thread.is_alive()

    def status(self) -> str:
        """Describe how the process ended."""
        code = self._popen.returncode if self._popen else None
        if code is None:
            return "still runs"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; return whether it ended in time."""
        self._thread.join(timeout_s)
        return not self.alive()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, *, grace_s: float, group_grace_s: float = 5.0) -> bool:
        """
        Stop the process and its children with SIGTERM; return False if it was killed.

        Args:
            grace_s: Seconds to wait after SIGTERM before it is killed.
            group_grace_s: Seconds to wait for its children after its end.
        """
        self.signal(signal.SIGTERM)
        clean = self.wait(grace_s)
        if not clean:
            self._signal_group(signal.SIGKILL)
            self.wait(group_grace_s)
        until = time.monotonic() + group_grace_s
        while self._signal_group(0) and time.monotonic() < until:
            time.sleep(0.02)
        self._signal_group(signal.SIGKILL)
        return clean

    def _signal_group(self, number: int) -> bool:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

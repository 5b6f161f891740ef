"""Start a child process that replies to messages, and report how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence

from converters.sources.wire import receive, send

# Variables that an interpreter needs; a model must not see secrets in the environment.
_PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")


class ChildLost(Exception):
    """
    Report that the child ended instead of replying.

    Args:
        how: The signal's name or the exit status; empty when it was killed because it
            was late or out of memory.
    """

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how or "killed")


class Child:
    """
    Run a process in a separate folder that replies to each message with one message.

    Args:
        timeout_s: Seconds that one reply may take.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="tollgate-")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env={
                    name: os.environ[name] for name in _PASSED_ON if name in os.environ
                }
                | {"HOME": self._folder.name, "OMP_NUM_THREADS": "1"},
            )
        except OSError:
            self._folder.cleanup()
            raise

    def ask(self, body: bytes) -> bytes:
        """
        Send a message and return the reply.

        Raises:
            ChildLost: There is no reply.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(self.timeout_s, self._process.kill)
        late.start()
        try:
            send(self._process.stdin, body)
            answer = receive(self._process.stdout)
        except BrokenPipeError:
            answer = b""
        finally:
            late.cancel()
        if not answer:
            raise ChildLost(self._end())
        return answer

    def close(self) -> None:
        """End the child and remove its folder."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # bytes that it did not read
                    stream.close()
        self._folder.cleanup()

    def _end(self) -> str:
        # The child has closed its pipe: it is exiting, unless it closed only the pipe.
        try:
            status = self._process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if status == -signal.SIGKILL:
            return ""
        return signal.Signals(-status).name if status < 0 else f"status {status}"

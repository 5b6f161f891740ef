"""Ask a model that another process has read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from converters.model import F32, F64, Facts, Probes
from converters.sources.formats import Format
from converters.sources.worker import Block, Reply, Request, receive, send
from tollgate.errors import ConversionError, InputError

TIMEOUT_S = 300.0
# What an interpreter needs; secrets in the environment are not a model's business.
_PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")


class FileModel:
    """
    A model's file, read by a child process; use it as a context manager.

    Args:
        path: The file.
        form: What it is.
        missing: The number that stands for a missing value, where the file does not
            say; None for NaN.
        timeout_s: How long one answer may take.
    """

    def __init__(
        self,
        path: Path,
        *,
        form: Format,
        missing: float | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="tollgate-")
        value = "" if missing is None else repr(missing)
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "converters.sources.worker",
                str(path.resolve()),
                form,
                value,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            | {"HOME": self._folder.name, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> FileModel:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        self._folder.cleanup()

    @property
    def facts(self) -> Facts:
        """What is known of it."""
        found = self._ask("facts").facts
        if found is None:
            raise InputError(self._path, "the reading process gave no facts")
        return found

    def predict(self, rows: F32) -> F64:
        """Return the probabilities of float32 [N, F] as float64 [N, K]."""
        found: F64 = self._array(self._ask("predict", rows).first)
        return found

    def convert(self) -> bytes:
        """Return it as ONNX."""
        return self._ask("convert").model

    def probes(self, samples: F32 | None) -> Probes:
        """Return sample rows (made when None), rows around every split, extremes."""
        reply = self._ask("probes", samples)
        return Probes(rows=self._array(reply.first), kind=self._array(reply.second))

    def _array(self, block: Block | None) -> Any:
        if block is None:
            raise InputError(self._path, "the reading process gave no rows")
        return block.array()

    def _ask(self, do: str, rows: F32 | None = None) -> Reply:
        block = None if rows is None else Block.of(rows)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        late = threading.Timer(self._timeout_s, self._child.kill)
        late.start()
        try:
            send(self._child.stdin, Request(do, block))
            body = receive(self._child.stdout)
        except BrokenPipeError:
            body = b""
        finally:
            late.cancel()
        if not body:
            raise InputError(self._path, self._end())
        try:
            reply = msgspec.msgpack.decode(body, type=Reply)
        except msgspec.DecodeError as error:
            raise InputError(self._path, "the reading process went astray") from error
        if reply.problem:
            raise ConversionError(f"{self._path}: {reply.problem}")
        return reply

    def _end(self) -> str:
        status = self._child.wait()
        if status == -signal.SIGKILL:
            return f"was not read within {self._timeout_s:g} s, or out of memory"
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"the process that read it ended with {how}: the file is damaged"

"""
Send with paced.c: thousands of requests a second, on the same machine as the server.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from tollgate.errors import InputError, ServerError, SetupError
from tollgate.load.arrivals import F64
from tollgate.load.bodies import Bodies, Load, bodies_from, unframe
from tollgate.load.results import METHOD, Ended, How, Results, collect_results

_SOURCES = [Path(__file__).with_name(name) for name in ("paced.c", "line.c")]
_RECORD = struct.Struct("<qqIiIIIIII")  # struct record of paced.c
_GRACE_S = 20.0
_REMEDY = "install, on Debian and Ubuntu: apt-get install gcc libc6-dev libnghttp2-14"


def compile_sender(folder: Path) -> Path:
    """
    Compile paced.c, unless the folder has it already.

    Args:
        folder: Folder for the program; no other process may use it.

    Raises:
        SetupError: A compiler or the library is missing.
    """
    program = folder / "paced"
    if program.exists():
        return program
    compiler = shutil.which("cc")
    if compiler is None:
        raise SetupError("no C compiler (cc) for the sender", remedy=_REMEDY)
    # Name the library's file: the link that -lnghttp2 needs comes with the headers.
    words = ["-O2", "-o", *map(str, (program, *_SOURCES)), "-l:libnghttp2.so.14"]
    made = subprocess.run([compiler, *words], capture_output=True, text=True)
    if made.returncode:
        problem = (made.stderr.splitlines() or ["no reason given"])[-1]
        raise SetupError(f"cc cannot compile paced.c: {problem}", remedy=_REMEDY)
    return program


def _run(
    command: list[str],
    *,
    most_s: float,
    began: Callable[[float], None] = lambda moment_s: None,
) -> float:
    """Run paced.c to its end; return its beginning, on time.perf_counter."""
    begin_s = 0.0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            word, _, moment_ns = child.stdout.readline().partition(" ")
            if word == "begin":
                begin_s = int(moment_ns) / 1e9
                began(begin_s)
            output = _wait_for_end(child, most_s)
        finally:
            child.kill()
    if child.returncode:
        raise ServerError("paced", output.strip() or f"status {child.returncode}")
    return begin_s


def _wait_for_end(child: subprocess.Popen[str], most_s: float) -> str:
    """Wait for the end of paced.c, longer on a stalled machine; return its stderr."""
    for patience_s in (most_s, _GRACE_S):
        try:
            return child.communicate(timeout=patience_s)[1]
        except subprocess.TimeoutExpired:
            continue
    raise ServerError("paced", f"did not end in {most_s + _GRACE_S:g} s")


def read_ended(path: Path) -> Iterator[Ended]:
    """
    Read the file that paced.c wrote, call by call.

    Raises:
        InputError: The file is truncated.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        at = 0
        while at < len(content):
            if at + _RECORD.size > len(content):
                raise InputError(path, "is cut: the sender did not end by itself")
            record = _RECORD.unpack_from(content, at)
            sent_ns, ended_ns, number, status, how, broken = record[:6]
            body, words, attempts, _ = record[6:]
            at += _RECORD.size
            answer = content[at : at + body]
            text = content[at + body : at + body + words]
            at += body + words
            good = how == How.ENDED and status == 0 and not broken
            yield Ended(
                number=number,
                sent_ns=sent_ns,
                ended_ns=ended_ns,
                how=how,
                status=-1 if broken and status <= 0 else status,
                words=text.decode(errors="replace"),
                answer=unframe(answer) if good else b"",
                attempts=attempts,
            )


class CompiledSender(msgspec.Struct, frozen=True):
    """
    Sender that runs paced.c, for thousands of requests a second.

    Attributes:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
        folder: Folder for files; no other process may use it.
    """

    grpc_url: str
    timeout_s: float
    folder: Path
    name: str = "compiled"

    def send(
        self, load: Load, *, began: Callable[[float], None] = lambda moment_s: None
    ) -> Results:
        """
        See `Sender`.

        Raises:
            ServerError: No server answers there, or the sender failed.
            SetupError: It cannot be compiled.
        """
        compile_sender(self.folder)
        before = os.times()
        waited_s = load.timeout_s * (load.retries + 1)
        most_s = float(load.at_s[-1]) + waited_s + _GRACE_S
        with self._files(load) as (command, answers):
            begin_s = _run(command, most_s=most_s, began=began)
            after = os.times()
            user_s = after.children_user - before.children_user
            return collect_results(
                read_ended(answers),
                at_s=load.at_s,
                rows=load.bodies.rows,
                poisoned=load.bodies.poisoned,
                begin_s=begin_s,
                sender_cpu_s=user_s + after.children_system - before.children_system,
            )

    def at_times(self, requests: Sequence[bytes], at_s: F64) -> Results:
        """See `Sender`."""
        return self.send(Load(at_s, self._bodies(requests), self.timeout_s))

    def one_by_one(self, requests: Sequence[bytes], *, run_s: float) -> Results:
        """See `Sender`."""
        bodies = self._bodies(requests)
        load = Load(np.zeros(len(requests)), bodies, self.timeout_s, connections=1)
        most_s = run_s + self.timeout_s + _GRACE_S
        with self._files(load, alone_ms=round(run_s * 1e3)) as (command, answers):
            begin_s = _run(command, most_s=most_s)
            calls = list(read_ended(answers))
        at_ns = [one.ended_ns if one.sent_ns < 0 else one.sent_ns for one in calls]
        return collect_results(
            calls,
            at_s=np.array(at_ns) / 1e9,
            rows=bodies.rows,
            poisoned=bodies.poisoned[: len(calls)],
            begin_s=begin_s,
        )

    def _bodies(self, requests: Sequence[bytes]) -> Bodies:
        return bodies_from(requests, path=self.folder / "bodies.bin")

    @contextmanager
    def _files(
        self, load: Load, *, alone_ms: int = 0
    ) -> Iterator[tuple[list[str], Path]]:
        """Write the input of paced.c; yield its command, and the file of answers."""
        program = compile_sender(self.folder)
        due, offsets, answers = (
            self.folder / f"{name}.bin" for name in ("due", "offsets", "answers")
        )
        np.rint(load.at_s * 1e9).astype("<i8").tofile(due)
        load.bodies.offsets.astype("<u8").tofile(offsets)
        host, _, port = self.grpc_url.rpartition(":")
        try:
            yield (
                [
                    *(str(program), host, port, METHOD, str(load.connections)),
                    *(str(round(load.timeout_s * 1e3)), str(load.retries)),
                    *map(str, (due, offsets, load.bodies.path, answers)),
                    str(alone_ms),
                    *itertools.chain.from_iterable(load.metadata),
                ],
                answers,
            )
        finally:
            for file in (due, offsets, answers):
                file.unlink(missing_ok=True)

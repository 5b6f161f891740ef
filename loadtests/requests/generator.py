"""Run h2load with a different body for every request."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.requests.recorded_answers import RecordedAnswers, read_answers
from tollgate.errors import InputError, ServerError, SetupError

METHOD = "/inference.GRPCInferenceService/ModelInfer"
# The tail of each run is cut off: in it, fewer requests are in flight than planned.
TAIL_S = 0.5
_SOURCE = Path(__file__).with_name("vary.c")
_GRACE_S = 30.0
_PACKAGES = "install it, on Debian and Ubuntu: apt-get install"


class Log(msgspec.Struct, frozen=True, eq=False):
    """h2load's log of each request: µs since 1970, HTTP status, µs; int64 [N]."""

    start_us: npt.NDArray[np.int64]
    status: npt.NDArray[np.int64]
    took_us: npt.NDArray[np.int64]


class GeneratorRun(msgspec.Struct, frozen=True):
    """
    Result of one run of h2load.

    Attributes:
        log: Every request that ended.
        recorded: Every answer.
        cpu_s: Processor time of h2load, s.
    """

    log: Log
    recorded: RecordedAnswers
    cpu_s: float


class Generator(msgspec.Struct, frozen=True):
    """h2load and the library that is preloaded into it."""

    binary: str
    version: str
    preload: Path


def make_generator(folder: Path) -> Generator:
    """
    Find h2load, and compile the library that varies its bodies.

    Args:
        folder: Folder for the compiled library.

    Raises:
        SetupError: h2load or a C compiler is missing.
    """
    binary = shutil.which("h2load")
    if binary is None:
        raise SetupError("h2load is missing", remedy=f"{_PACKAGES} nghttp2-client")
    compiler = shutil.which("cc")
    remedy = f"{_PACKAGES} gcc libc6-dev"
    if compiler is None:
        raise SetupError(
            "no C compiler (cc) for loadtests/requests/vary.c", remedy=remedy
        )
    preload = folder / "vary.so"
    options = ["-O2", "-shared", "-fPIC", "-o", str(preload), str(_SOURCE), "-ldl"]
    made = subprocess.run([compiler, *options], capture_output=True, text=True)
    if made.returncode:
        problem = (made.stderr.splitlines() or ["no reason given"])[0]
        raise SetupError(f"cc cannot compile vary.c: {problem}", remedy=remedy)
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True)
    version = printed.stdout.strip().rpartition("/")[2]
    return Generator(binary=binary, version=version, preload=preload)


def command_line(
    scenario: Scenario,
    *,
    grpc_url: str,
    run_s: float,
    body: str = "BODY",
    log: str = "LOG",
    rate_per_s: int = 0,
) -> list[str]:
    """
    Write h2load's command: prior-knowledge HTTP/2, one thread.

    A closed loop, unless a rate is given: then it sends so many requests per second, as
    long as fewer are in flight than the scenario says.
    """
    paced = ["--rps", str(rate_per_s // scenario.connections)] if rate_per_s else []
    return [
        "h2load",
        *paced,
        *("-t", "1"),
        *("-c", str(scenario.connections)),
        *("-m", str(scenario.streams)),
        *("-D", f"{round(run_s * 1000)}ms"),
        *("-p", "h2c"),
        *("-H", "content-type: application/grpc"),
        *("-H", "te: trailers"),
        *("-d", body),
        f"--log-file={log}",
        f"http://{grpc_url}{METHOD}",
    ]


def http_command_line(
    scenario: Scenario,
    *,
    grpc_url: str,
    run_s: float,
    body: str = "BODY",
    log: str = "LOG",
    rate_per_s: int = 0,
    path: str = "/decide",
) -> list[str]:
    """Write h2load's command for a service that speaks HTTP/1.1 and JSON."""
    command = command_line(
        scenario,
        grpc_url=grpc_url,
        run_s=run_s,
        body=body,
        log=log,
        rate_per_s=rate_per_s,
    )
    at = command.index("-p")
    return [
        *command[:at],
        *("--h1", "-H", "content-type: application/json"),
        *("-d", body),
        f"--log-file={log}",
        f"http://{grpc_url}{path}",
    ]


def run_h2load(
    generator: Generator,
    scenario: Scenario,
    *,
    bodies: npt.NDArray[np.uint8],
    grpc_url: str,
    run_s: float,
    folder: Path,
    rate_per_s: int = 0,
    write_command: Callable[..., list[str]] = command_line,
) -> GeneratorRun:
    """
    Send bodies, one after the other and from the first again at the end.

    Args:
        generator: From `make_generator`.
        scenario: Number of connections and of requests in flight.
        bodies: uint8 [B, L].
        run_s: Duration from the first request, warm-up and tail included, s.
        folder: Folder for files; files of an earlier run are replaced.
        rate_per_s: Requests per second; 0 for a closed loop.
        write_command: `command_line`, or one like it for another protocol. vary.c
            records the answers of gRPC only.

    Raises:
        ServerError: h2load failed.
    """
    pool, body = folder / "bodies.bin", folder / "body.bin"
    log, answers = folder / "h2load.log", folder / "answers.bin"
    bodies.tofile(pool)
    bodies[0].tofile(body)
    log.unlink(missing_ok=True)  # h2load appends
    command = write_command(
        scenario,
        grpc_url=grpc_url,
        run_s=run_s,
        body=str(body),
        log=str(log),
        rate_per_s=rate_per_s,
    )
    before = os.times()
    said = _run(
        [generator.binary, *command[1:]],
        environment={
            "LD_PRELOAD": str(generator.preload),
            "TOLLGATE_BODIES": str(pool),
            "TOLLGATE_BODY_BYTES": str(bodies.shape[1]),
            "TOLLGATE_ANSWERS": str(answers),
        },
        timeout_s=run_s + _GRACE_S,
    )
    after = os.times()
    if not log.exists() or not log.stat().st_size:
        raise ServerError("h2load", f"no answer from {grpc_url}", log=said.strip())
    return GeneratorRun(
        log=read_log(log),
        recorded=read_answers(answers),
        cpu_s=after.children_user
        + after.children_system
        - before.children_user
        - before.children_system,
    )


def _run(command: list[str], *, environment: dict[str, str], timeout_s: float) -> str:
    """Run h2load; return its output."""
    try:
        done = subprocess.run(
            command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as exc:
        raise ServerError("h2load", f"did not end in {timeout_s:g} s") from exc
    if done.returncode:
        words = (done.stderr or done.stdout).strip()
        raise ServerError("h2load", f"ended with status {done.returncode}", log=words)
    return done.stdout


def read_log(path: Path) -> Log:
    """
    Read h2load's log: a line per request, three numbers separated by tabs.

    Raises:
        InputError: It is empty or has lines of another form.
    """
    numbers = []
    for line, text in enumerate(path.read_text().splitlines(), start=1):
        try:
            start_us, status, took_us = map(int, text.split("\t"))
        except ValueError as exc:
            raise InputError(
                path, f"{text!r:.80} is not three numbers", where=f"line {line}"
            ) from exc
        numbers.append((start_us, status, took_us))
    if not numbers:
        raise InputError(path, "is empty: no request ended")
    columns = np.array(numbers, np.int64).T
    return Log(start_us=columns[0], status=columns[1], took_us=columns[2])


# Closed-loop scenarios: rows of a request, and number of requests in flight.


class Scenario(msgspec.Struct, frozen=True):
    """
    A closed loop: each answer is followed at once by the next request.

    Attributes:
        name: Name of the scenario in `--only`.
        rows: Rows per request, 1 to 32.
        connections: TCP connections, each like one replica of a calling service.
        streams: Requests in flight on each of them.
        most_requests_per_s: More than this machine class answers; so many bodies are
            written per second, and they repeat when that is too few.
    """

    name: str
    rows: int
    connections: int
    streams: int
    most_requests_per_s: int

    @property
    def in_flight(self) -> int:
        """Return the number of requests in flight on all connections."""
        return self.connections * self.streams


# Four connections: the server serves one connection by one thread at a time, and one
# connection per request is not how gRPC clients work.
SCENARIOS = (
    Scenario("1-row-1", rows=1, connections=1, streams=1, most_requests_per_s=4_000),
    Scenario("1-row-16", rows=1, connections=4, streams=4, most_requests_per_s=12_000),
    Scenario("1-row-64", rows=1, connections=4, streams=16, most_requests_per_s=20_000),
    Scenario("16-rows-8", rows=16, connections=4, streams=2, most_requests_per_s=4_000),
    Scenario("16-rows-4", rows=16, connections=4, streams=1, most_requests_per_s=4_000),
)


def pick(name: str | None) -> tuple[Scenario, ...]:
    """
    Pick one scenario by name, or all.

    Raises:
        InputError: There is no scenario of that name.
    """
    if name is None:
        return SCENARIOS
    found = tuple(one for one in SCENARIOS if one.name == name)
    if not found:
        known = ", ".join(one.name for one in SCENARIOS)
        raise InputError("--only", f"{name!r} is none of {known}")
    return found

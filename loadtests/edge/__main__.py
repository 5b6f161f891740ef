"""
Measure a device: `python -m loadtests.edge`.

Parts, in this order; `--only` chooses some:

* `equality`: rows of two products through a served ensemble and a device; bits that
  differ in features, answers and records.
* `start`: from the command to the first answer, and the resident memory after it.
* `latency`: purchases at a fixed rate, in process and over gRPC; latency from when each
  was due, processor time, and memory at the end.
* `half`: the same with half of its processor taken away for a time, and a large model.
* `kills`: the process is killed under load, again and again.
* `power`: the same, and each kill takes every write that was not synced.

Exit status 1 if bits differ, or if a decision that was acknowledged is lost, or if a
replay of the journal does not give the windows on disk.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtests.edge.decider import purchases
from loadtests.edge.half import halves, measure_phases, pack_network
from loadtests.edge.losses import Victim, build_library
from loadtests.equality import compare, pack_product, run_apart
from loadtests.harness import (
    REPOSITORY,
    Report,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.requests.bodies import fraud_requests
from tollgate.errors import InputError, ServerError, SetupError
from tollgate.load.arrivals import poisson
from tollgate.load.process_usage import use_of
from tollgate.load.sender import open_sender
from tollgate.load.surroundings import commit, hardware
from tollgate_client import Client

PARTS = ("equality", "start", "latency", "half", "kills", "power")
_PRODUCTS = ("fraud", "sensors")
_FIRST_ANSWER_S = 120.0  # on a machine that is busy with other work
_TIMEOUT_S = 10.0
_MOST_S = 2.0  # of load before a kill


class _Device:
    """
    A `tollgate edge run` in a process of its own.

    Args:
        options: More options of the command.
        processor: The only processor that it may use; None for any.
    """

    def __init__(
        self,
        folder: Path,
        bundle: Path,
        key: Path,
        *,
        options: Sequence[str] = (),
        processor: int | None = None,
    ) -> None:
        words = ("edge", "run", str(bundle), "--key", str(key), *options, "--state")
        program = (sys.executable, "-c", "from tollgate.cli import main; main()")
        pinned = () if processor is None else ("taskset", "-c", str(processor))
        command = (*pinned, *program, *words, str(folder / "state"))
        self.began_s = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        if " on " not in line:
            raise ServerError("the device", line.strip() or "ended by itself")
        self.address = line.partition(" on ")[2].partition(";")[0]

    def resident_mib(self) -> float:
        """Return the resident memory of the process, pages of files included."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE") / 2**20


@contextmanager
def _running(folder: Path, bundle: Path, key: Path, **more: Any) -> Iterator[_Device]:
    device = _Device(folder, bundle, key, **more)
    try:
        yield device
    finally:
        device.process.send_signal(signal.SIGTERM)
        device.process.communicate(timeout=_FIRST_ANSWER_S)


def measure_equality(rows: int) -> tuple[list[str], bool]:
    """Compare a device with a served ensemble, bit by bit."""
    lines, equal = [], True
    for product in _PRODUCTS:
        numbers = {"rows": rows, "seed": 3, "newest_us": time.time_ns() // 1000}
        wanted = run_apart("ensemble", "compiled", product, **numbers)
        found = run_apart("device", "compiled", product, **numbers)
        bits = compare(found, wanted)
        equal = equal and not bits.any
        lines.append(
            f"* equality, {product}: {len(found.answers):,} rows, "
            f"{len(found.records):,} records; bits that differ: {bits.features} of "
            f"features, {bits.answers} of answers, {bits.journal} of records"
        )
    return lines, equal


def measure_start(folder: Path, bundle: Path, *, key: Path, runs: int) -> list[str]:
    """Start it some times; the first start makes the database."""
    times_s, sizes_mib = [], []
    for number in range(runs):
        row = next(purchases(number, 0))
        with (
            _running(folder, bundle, key) as device,
            Client(
                device.address, product="fraud", timeout_s=_FIRST_ANSWER_S
            ) as client,
        ):
            client.decide(row)
            times_s.append(time.perf_counter() - device.began_s)
            sizes_mib.append(device.resident_mib())
    return [
        f"* start to first answer, {runs} runs: median {statistics.median(times_s):.2f}"
        f" s, {min(times_s):.2f} to {max(times_s):.2f} s; resident then "
        f"{max(sizes_mib):.0f} MiB"
    ]


def measure_latency(
    folder: Path, bundle: Path, *, key: Path, rate: float, seconds: float
) -> list[str]:
    """Send purchases at a rate, whatever the device does."""
    count, warm = int(rate * seconds), int(rate * 2)
    rows = list(itertools.islice(purchases(0, 0), count + warm))
    columns = {name: np.array([one[name][0] for one in rows]) for name in rows[0]}
    requests = fraud_requests(columns, rows=1, deadline_s=_TIMEOUT_S)
    at_s = poisson(count + warm, rate_per_s=rate, seed=1)
    with (
        _running(folder, bundle, key) as device,
        open_sender(device.address, timeout_s=_TIMEOUT_S, report=say) as sender,
    ):
        before_s = use_of([device.process.pid]).cpu_s
        results = sender.at_times(requests, at_s).later(warm)
        used_s = use_of([device.process.pid]).cpu_s - before_s
        size_mib = device.resident_mib()
    missed = int(np.count_nonzero(~results.answered))
    return [
        f"* latency over gRPC at {rate:g} requests/s (Poisson, one row, {sender.name}),"
        f" {seconds:g} s after 2 s: {_percentiles(results.latency_s * 1e3)}; {missed} "
        f"of {count:,} not answered; processor time "
        f"{used_s / len(requests) * 1e6:.0f} µs per decision; resident at the end "
        f"{size_mib:.0f} MiB"
    ]


def measure_in_process(
    folder: Path, bundle: Path, *, key: Path, rate: float, seconds: float
) -> list[str]:
    """Let threads of the device's own process send them."""
    program = (sys.executable, "-m", "loadtests.edge.in_process", str(bundle), str(key))
    done = subprocess.run(
        [*program, str(folder / "in-process"), str(rate), str(seconds)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    *latency_ms, used_us, size_mib = map(float, done.stdout.split())
    return [
        f"* latency in process at {rate:g} requests/s (Poisson, one row), {seconds:g} "
        f"s after 2 s: {_percentiles(latency_ms)}; processor time {used_us:.0f} µs per "
        f"decision, callers included; resident at the end {size_mib:.0f} MiB"
    ]


def _percentiles(latency_ms: Sequence[float] | npt.NDArray[np.float64]) -> str:
    p50, p90, p99, p999, most = np.percentile(latency_ms, [50, 90, 99, 99.9, 100])
    return (
        f"p50 {p50:.2f}, p90 {p90:.2f}, p99 {p99:.2f}, p99.9 {p999:.2f}, "
        f"most {most:.2f} ms"
    )


def measure_half(folder: Path, *, rate: float, seconds: float) -> list[str]:
    """Take half of its processor away, and give it back."""
    *others, processor = sorted(os.sched_getaffinity(0))
    if not others:
        raise SetupError("this machine has one processor", remedy="use one with two")
    bundle, key = pack_network(folder)
    # Memory shall not be short; the limit of time lies above the network's usual time.
    options = ("--resident-mib", "400", "--late-ms", "8")
    with _running(folder, bundle, key, options=options, processor=processor) as device:
        os.sched_setaffinity(0, set(others))
        return measure_phases(
            device.address, halves(seconds), rate=rate, processor=processor
        )


def measure_losses(
    folder: Path, bundle: Path, *, key: Path, kills: int, power: bool
) -> tuple[list[str], bool]:
    """Kill a device under load."""
    victim = Victim(
        bundle,
        key=key,
        repository=REPOSITORY,
        folder=folder,
        library=build_library(folder) if power else None,
    )
    for number in range(kills):
        victim.kill(most_s=_MOST_S)
        say(f"{number + 1} of {kills}: {victim.losses}")
    found = victim.losses
    name = "losses of power" if power else "kills"
    line = (
        f"* {found.kills} {name}: {found.acknowledged:,} decisions acknowledged, "
        f"{found.lost} lost; {found.records:,} records, {found.doubled} doubled, "
        f"{found.missing} missing; {found.differing} differ from a replay"
    )
    return [line], found.none


def measure(options: argparse.Namespace) -> Report:
    """Run the parts, each in a folder of its own."""
    parts = options.only.split(",") if options.only else PARTS
    for part in parts:
        if part not in PARTS:
            problem = f"{part!r:.40} is none of {', '.join(PARTS)}"
            raise InputError("--only", problem)
    lines, ok = [], True
    for part in (one for one in PARTS if one in parts):
        say(f"{part}, load average {os.getloadavg()[0]:.1f}")
        with temporary_folder("edge") as folder:
            bundle, key = pack_product(REPOSITORY, "fraud", folder=folder)
            fine, found = True, []
            if part == "equality":
                found, fine = measure_equality(options.rows)
            elif part == "start":
                found = measure_start(folder, bundle, key=key, runs=options.starts)
            elif part == "latency":
                load = {"rate": options.rate, "seconds": options.seconds}
                found = measure_in_process(folder, bundle, key=key, **load)
                found += measure_latency(folder, bundle, key=key, **load)
            elif part == "half":
                found = measure_half(
                    folder, rate=options.rate / 2, seconds=options.seconds
                )
            else:
                power = part == "power"
                found, fine = measure_losses(
                    folder,
                    bundle,
                    key=key,
                    kills=options.losses if power else options.kills,
                    power=power,
                )
            ok = ok and fine
            lines += [f"{one}; load average {os.getloadavg()[0]:.1f}" for one in found]
    head = f"{hardware()}; commit {commit()}; `{options.command}`"
    return Report("\n".join([head, "", *lines]), ok=ok)


def main(arguments: Sequence[str]) -> int:
    """Run the load test; return its exit status."""
    parser = command_parser("edge")
    parser.add_argument("--only", help=f"parts, with commas: {','.join(PARTS)}")
    parser.add_argument("--rows", type=int, default=14_500, help="rows of each product")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of the load")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--losses", type=int, default=20, help="losses of power")
    parser.add_argument("--out", type=Path, help="file for the report")
    least = {"rows": 64, "starts": 1, "rate": 1, "seconds": 1, "kills": 1, "losses": 1}
    return run_command(parser, arguments, measure=measure, least=least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

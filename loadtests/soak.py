"""
Check that memory does not grow: `python -m loadtests.soak --minutes 120`.

Run `tollgate up` under a fixed rate of single rows, every one a new purchase. Every
few seconds, read the private memory (the part of PSS that belongs to no file) of
tritonserver with its steps, of the supervisor and of Redis, and the server's part of
/dev/shm. Report the slope of each, with an interval.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.harness import (
    REPOSITORY,
    Population,
    Report,
    StoreContents,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.requests.bodies import bodies_of
from loadtests.requests.generator import TAIL_S, Scenario, make_generator, run_h2load
from loadtests.requests.recorded_answers import tally
from loadtests.results.markdown import markdown_table
from tollgate.errors import ServerError
from tollgate.load.process_usage import use_of
from tollgate.load.surroundings import measured_on
from tollgate.server.processes.environment import SHM
from tollgate.server.triton.launcher import region_prefix
from tollgate.supervisor.fault_log import read_faults
from tollgate.testing.supervised import Supervised, supervised
from tollgate.worker import Worker

_SAMPLE_S = 5.0
_PART_S = 60.0  # of the load; each part has new bodies
_WARM_UP_SHARE = 0.25  # caches fill in it
_BLOCKS = 12  # samples close in time are alike: means of blocks are less so
# Two-sided 95 % of Student's t with _BLOCKS - 2 degrees of freedom.
_T = 2.228
_SCENARIO = Scenario(
    "paced", rows=1, connections=4, streams=64, most_requests_per_s=1_000
)


class Sample(msgspec.Struct, frozen=True):
    """Memory at one moment, MB (10^6 bytes)."""

    at_s: float
    server_mb: float
    supervisor_mb: float
    redis_mb: float
    shm_mb: float


class Slope(msgspec.Struct, frozen=True):
    """Growth in MB per hour, with half the width of its 95 % interval."""

    per_hour: float
    half: float


def main(arguments: Sequence[str]) -> int:
    """Load and sample; print the table; status 1 when a request failed."""
    parser = command_parser("soak")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=500, help="requests per second")
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Load, sample, and write the table."""
    samples, answered, failures = run(options.minutes, rate_per_s=options.rate)
    lines = to_markdown(samples)
    lines += ["", f"{answered:,} requests answered, {failures.total()} failed."]
    lines += [f"Failed {count} times: {why}" for why, count in failures.items()]
    lines += ["", f"{measured_on()}. `{options.command}`"]
    return Report("\n".join(lines), ok=not failures)


def run(minutes: float, *, rate_per_s: int) -> tuple[list[Sample], int, Counter[str]]:
    """Serve, load and sample; return samples, answers, and failures by reason."""
    with temporary_folder("soak") as folder:
        generator = make_generator(folder)
        contents = StoreContents(Population(2_000, 4_000))
        with supervised(REPOSITORY, state=folder / "state") as product:
            contents.fill(product.address.store_url)
            sampler = _Sampler(product)
            first = answered = 0
            failures: Counter[str] = Counter()
            until_s = time.monotonic() + minutes * 60
            while (left_s := until_s - time.monotonic()) > TAIL_S:
                run_s = min(_PART_S, left_s)
                count = round(rate_per_s * (run_s + 1))
                generated = run_h2load(
                    generator,
                    _SCENARIO,
                    bodies=bodies_of(contents.traffic.columns(first, count), rows=1),
                    grpc_url=product.grpc_url,
                    run_s=run_s,
                    folder=folder,
                    rate_per_s=rate_per_s,
                )
                first += count
                counts = tally(generated.recorded.answers)
                answered += counts.requests
                failures.update(counts.failures)
                if counts.refused_rows:
                    failures["refused rows"] += counts.refused_rows
            for fault in read_faults(folder / "state"):
                say(f"{fault.time} {fault.part}: {fault.what}")
            return sampler.stop(), answered, failures


class _Sampler:
    """Takes samples in a background loop."""

    def __init__(self, product: Supervised) -> None:
        self._product = product
        self._server = product.pid("tritonserver")
        self._redis = product.pid("redis-server")
        self._prefix = region_prefix(product.state.resolve())
        self._samples: list[Sample] = []
        self._worker = Worker("soak-samples", self._sample, pause_s=_SAMPLE_S)
        self._worker.start()

    def stop(self) -> list[Sample]:
        """Stop, and return the samples."""
        self._worker.stop()
        return self._samples

    def _sample(self) -> None:
        server = use_of([self._server]).own_mb
        redis = use_of([self._redis]).own_mb
        both = use_of([self._product.process.pid]).own_mb
        shm = sum(one.stat().st_blocks * 512 for one in SHM.glob(f"{self._prefix}*"))
        self._samples.append(
            Sample(
                at_s=time.monotonic(),
                server_mb=server,
                supervisor_mb=both - server - redis,
                redis_mb=redis,
                shm_mb=shm / 1e6,
            )
        )


def slope_of(at_s: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> Slope:
    """
    Fit a line through the means of blocks; the residuals count as independent noise.

    Args:
        at_s: Times of the samples, ascending, s; at least as many as there are blocks.
        values: Memory, MB.
    """
    times = np.array([part.mean() for part in np.array_split(at_s, _BLOCKS)]) / 3600
    means = np.array([part.mean() for part in np.array_split(values, _BLOCKS)])
    centred = times - times.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (means - means.mean())) / spread
    rest = means - means.mean() - slope * centred
    error = (float(rest @ rest) / (_BLOCKS - 2) / spread) ** 0.5
    return Slope(per_hour=slope, half=_T * error)


def to_markdown(samples: Sequence[Sample]) -> list[str]:
    """
    Write a line for each kind of memory.

    Raises:
        ServerError: There are too few samples for a slope.
    """
    counted = samples[int(len(samples) * _WARM_UP_SHARE) :]
    if len(counted) < 2 * _BLOCKS:
        raise ServerError("soak", f"{len(counted)} samples are too few; run it longer")
    at_s = np.array([one.at_s for one in counted])
    head = ("memory of its own", "first MB", "last MB", "MB an hour, 95 % interval")
    rows = []
    for words, name in (
        ("tritonserver and steps", "server_mb"),
        ("supervisor", "supervisor_mb"),
        ("Redis", "redis_mb"),
        ("/dev/shm", "shm_mb"),
    ):
        values: Any = np.array([getattr(one, name) for one in counted])
        found = slope_of(at_s, values)
        low, high = found.per_hour - found.half, found.per_hour + found.half
        hourly = f"{found.per_hour:+.1f} ({low:+.1f} to {high:+.1f})"
        rows.append((words, f"{values[0]:.1f}", f"{values[-1]:.1f}", hourly))
    return markdown_table(head, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

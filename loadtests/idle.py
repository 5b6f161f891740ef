"""
Measure the processor time of a server that gets no requests.

    python -m loadtests.idle                                   # this checkout
    python -m loadtests.idle --before ../other/.venv/bin/python   # and another one's

Each run starts `tollgate up`, waits until it is ready and settled, and reads the
processor time of the supervisor and of all processes that it started from /proc, at the
beginning and at the end. With `--before` the two checkouts run in turns. The last table
shows a tritonserver on the same machine that has loaded no model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from loadtests.harness import (
    Report,
    add_repository,
    command_parser,
    run_command,
    temporary_folder,
)
from tollgate.load.process_usage import descendants
from tollgate.load.surroundings import measured_on
from tollgate.server.triton.launcher import TritonServer
from tollgate.supervisor.supervisor_metrics import read_processes
from tollgate.testing.supervised import Supervised

SETTLE_S = 20.0
_SERVER = "tritonserver"
_NAMES = {
    "tollgate": "supervisor",
    "python": "supervisor",
    "triton_python_b": "Python steps",
}

Shares = dict[str, float]


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = command_parser("idle")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--before", type=Path, help="Python of another checkout")
    add_repository(parser)
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Measure in turns, and write a table."""
    pythons = {"this checkout": Path(sys.executable)}
    if options.before:
        pythons = {"before": options.before.absolute(), **pythons}
    shares: dict[str, list[Shares]] = defaultdict(list)
    with temporary_folder("idle") as folder:
        for run in range(options.runs):
            for name, python in pythons.items():
                state = folder / f"{len(shares)}-{run}"
                shares[name].append(
                    idle_up(options.repository, state, python, options.seconds)
                )
        empty = folder / "empty"
        empty.mkdir()
        bare = idle_triton(empty, folder / "bare", options.seconds)
    return Report(
        f"{to_text(shares, bare)}\n\n{measured_on()}. {options.runs} run(s) of "
        f"{options.seconds:g} s each"
    )


def idle_up(repository: Path, state: Path, python: Path, seconds: float) -> Shares:
    """Measure an idle `tollgate up`: percent of a core by kind of process."""
    product = Supervised(repository, state, python=python)
    try:
        product.wait(lambda: bool(product.health_url) and product.ready())
        time.sleep(SETTLE_S)
        return shares_of(product.process.pid, seconds)
    finally:
        product.stop()


def idle_triton(repository: Path, state: Path, seconds: float) -> Shares:
    """Measure a tritonserver that has loaded no model, without a supervisor."""
    with TritonServer(repository, state=state, store_url="redis://127.0.0.1:1") as one:
        time.sleep(SETTLE_S / 4)
        return shares_of(one.pid, seconds)


def shares_of(root: int, seconds: float) -> Shares:
    """
    Measure a process and its descendants.

    Returns:
        Kind of process to its processor time, percent of one core.
    """
    begun_s, before = time.monotonic(), _cpu_s(root)
    time.sleep(seconds)
    taken_s, after = time.monotonic() - begun_s, _cpu_s(root)
    found: Shares = defaultdict(float)
    for key in before.keys() & after.keys():
        found[key[1]] += 100 * (after[key] - before[key]) / taken_s
    return dict(found)


def _cpu_s(root: int) -> dict[tuple[int, str], float]:
    named = []
    for pid in descendants([root]):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except FileNotFoundError:
            continue  # the process has just ended
        known = "supervisor" if pid == root and name != _SERVER else name
        named.append((pid, _NAMES.get(known, known), "", str(pid)))
    return {
        (int(one.instance), one.process): one.cpu_s
        for one in read_processes(iter(named))
    }


def to_text(shares: dict[str, list[Shares]], bare: Shares) -> str:
    """Write the table: the median of the runs, and their range for the sum."""
    names = list(shares)
    kinds = sorted({kind for runs in shares.values() for one in runs for kind in one})
    lines = [f"| % of a core | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for kind in kinds:
        cells = [
            f"{statistics.median(one.get(kind, 0.0) for one in shares[name]):.2f}"
            for name in names
        ]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    cells = []
    for name in names:
        sums = [sum(one.values()) for one in shares[name]]
        cells.append(
            f"{statistics.median(sums):.2f} ({min(sums):.2f} to {max(sums):.2f})"
        )
    lines.append(f"| together | {' | '.join(cells)} |")
    lines.append(f"\ntritonserver with nothing loaded: {sum(bare.values()):.2f} %")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

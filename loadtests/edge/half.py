"""
Take half of its processor away from a device, and give it back.

The device runs on one processor, with a network of some million weights as its model, a
distilled one and rules. Another process computes on the same processor for a while,
with the same priority; so each has half of it. The purchases come from another
processor, at a fixed rate all the time.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from loadtests.edge.decider import purchases
from loadtests.harness import REPOSITORY, say
from tollgate.edge.variants import UP_AFTER_S
from tollgate.errors import ServerError
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.load.arrivals import poisson
from tollgate.repository.releases.served_versions import served_spec
from tollgate_client import AsyncDecisionClient, Decision, Fallback, Options, RetryRules

_WIDTHS = (1024,) * 6
_ROWS, _EPOCHS = 2_000, 2
_LABEL = "label"
_DEADLINE_S = 20.0
_SETTLE_S = 2.0  # of a phase, in which the device finds its variant


class Phase(msgspec.Struct, frozen=True):
    """
    A part of the run.

    Attributes:
        name: What happens in it.
        seconds: How long it lasts.
        taken: True while half of the processor is taken away.
    """

    name: str
    seconds: float
    taken: bool


def pack_network(folder: Path) -> tuple[Path, Path]:
    """Train a network for the fraud product, distil it, and pack both with rules."""
    repository = folder / "model_repository"
    shutil.copytree(REPOSITORY, repository)
    network, rows = folder / "network.joblib", folder / "rows.parquet"
    _train(network, rows, spec=served_spec(repository, product="fraud"))
    product = ("--product", "fraud", "--repository", str(repository))
    convert = (
        *("convert", str(network), "--trust-pickle", *product),
        *("--sample", str(rows), "--label", _LABEL),
    )
    any_loss = ("--max-flips", "1", "--max-auc-loss", "1", "--max-ap-loss", "1")
    full, small = str(folder / "full"), str(folder / "small")
    private, public = str(folder / "network.key"), folder / "network.pub"
    bundle = folder / "network.bundle"
    for words in (
        (*convert, "--out", full),
        (*convert, "--out", small, "--distill", *any_loss),
        ("publish", full, *product),
        ("release", "activate", "--set", "model=2", "--reason", "a network", *product),
        ("edge", "key", private, str(public)),
        (
            *("edge", "pack", "fraud", "--repository", str(repository), "--rules"),
            *("--smaller", small, "--key", private, "--out", str(bundle)),
        ),
    ):
        say(f"tollgate {words[0]} {words[1]}")
        _run(*words)
    return bundle, public


def _train(network: Path, table: Path, *, spec: FeatureSpec) -> None:
    """Train a network on drawn features; write it, and its rows."""
    import joblib
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    draw = np.random.default_rng(5)
    rows = draw.lognormal(2.0, 1.0, (_ROWS, len(spec.feature_names)))
    rows = rows.astype(np.float32)
    label = (rows[:, 0] * draw.lognormal(0.0, 0.5, _ROWS) > 60.0).astype(np.int64)
    made = make_pipeline(
        StandardScaler(), MLPClassifier(_WIDTHS, max_iter=_EPOCHS, random_state=5)
    )
    with warnings.catch_warnings(action="ignore"):  # it has not converged
        made.fit(rows, label)
    joblib.dump(made, network)
    columns = dict(zip(spec.feature_names, rows.T, strict=True))
    pl.DataFrame({**columns, _LABEL: label}).write_parquet(table)


def _run(*words: str) -> None:
    """
    Run a command of Tollgate.

    Raises:
        ServerError: It failed.
    """
    program = (sys.executable, "-c", "from tollgate.cli import main; main()")
    done = subprocess.run([*program, *words], capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"tollgate {words[0]}", done.stderr.strip())


def _compute(processor: int) -> None:
    os.sched_setaffinity(0, {processor})
    while True:
        pass


@contextmanager
def half_taken(processor: int, *, taken: bool) -> Iterator[None]:
    """Compute on a processor all the time."""
    if not taken:
        yield
        return
    other = multiprocessing.get_context("spawn").Process(
        target=_compute, args=(processor,), daemon=True
    )
    other.start()
    try:
        yield
    finally:
        other.kill()
        other.join()


async def _send(
    client: AsyncDecisionClient, rows: Iterator[dict[str, object]], phase: Phase,
    *, rate: float, seed: int,
) -> list[tuple[float, float, Decision]]:  # fmt: skip
    """Send purchases when they are due; return when, how long, and the decision."""
    began_s = time.perf_counter()
    found: list[tuple[float, float, Decision]] = []

    async def ask(due_s: float, row: dict[str, object]) -> None:
        decision = await client.decide(row)
        found.append((due_s, time.perf_counter() - began_s - due_s, decision))

    async with asyncio.TaskGroup() as group:
        count = int(rate * phase.seconds)
        for due_s in poisson(count, rate_per_s=rate, seed=seed).tolist():
            await asyncio.sleep(began_s + due_s - time.perf_counter())
            group.create_task(ask(due_s, next(rows)))
    return found


def measure_phases(
    address: str, phases: Sequence[Phase], *, rate: float, processor: int
) -> list[str]:
    """Send purchases through all phases; describe each."""
    rows = (
        {name: column[0] for name, column in one.items()} for one in purchases(0, 0)
    )
    lines = []

    async def run() -> None:
        options = Options(deadline_s=_DEADLINE_S, retry=RetryRules(attempts=1))
        client = AsyncDecisionClient(
            address, fallback=Fallback("review"), options=options, coalescing=None
        )
        for _ in range(50):
            await client.decide(next(rows))
        for number, phase in enumerate(phases):
            say(phase.name)
            with half_taken(processor, taken=phase.taken):
                found = await _send(client, rows, phase, rate=rate, seed=number)
            lines.append(_line(phase, found))
        await client.close()

    asyncio.run(run())
    return lines


def _line(phase: Phase, found: Sequence[tuple[float, float, Decision]]) -> str:
    by_release = Counter(one.release or one.source for _, _, one in found)
    variants = ", ".join(f"{name} {count:,}" for name, count in by_release.items())
    settled = [took_s for due_s, took_s, _ in found if due_s >= _SETTLE_S]
    return (
        f"* {phase.name}, {phase.seconds:g} s: "
        f"{_percentiles([took_s for _, took_s, _ in found])}; without the first "
        f"{_SETTLE_S:g} s {_percentiles(settled)}; answers by release: {variants}"
    )


def _percentiles(latency_s: Sequence[float]) -> str:
    p50, p99 = np.percentile(latency_s, [50, 99]) * 1e3
    return f"p50 {p50:.1f}, p99 {p99:.1f}, most {max(latency_s) * 1e3:.1f} ms"


def halves(seconds: float) -> list[Phase]:
    """Return the phases: the whole processor, half of it, the whole again."""
    return [
        Phase("the whole processor", seconds, taken=False),
        Phase("half of it taken away", seconds, taken=True),
        Phase("the whole processor again", UP_AFTER_S + seconds, taken=False),
    ]

"""Print the steps and results of the demo for a person."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from tollgate.cli import console
from tollgate.evaluation import average_precision, roc_auc
from tollgate.history import History
from tollgate.schema import Degraded

if TYPE_CHECKING:
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate_client import Decisions

Note = Callable[[str], None]

SLA_MS, SLO_MS = 50, 20  # the SLA, and the SLO
_COLD = np.uint32(Degraded.COLD_START)  # a customer's first purchase is no fault
_SAMPLE = 4  # decisions shown of each kind

NEXT_FILE = "purchases.csv"  # in the folder of the demo's history


def _next_commands() -> tuple[tuple[str, str], ...]:
    """List example commands to run next, ready to be typed here."""
    tollgate = os.path.relpath(sys.argv[0])
    return (
        (
            "serve what was trained",
            f"{tollgate} up --repository .tollgate/model_repository",
        ),
        (
            "meanwhile, elsewhere: decide a file",
            f"{tollgate} score .tollgate/demo/{NEXT_FILE}",
        ),
        (
            "see that the features served are those trained on, bit for bit",
            f"{tollgate} features replay .tollgate/demo/history.parquet "
            "--from 2018-08-01 --until 2018-08-03",
        ),
    )


def step(title: str, text: str, seconds: float) -> None:
    """Print a finished step with its result and duration."""
    console.out.print(
        f"[green]✓[/] {title}: {text} [dim]({seconds:.1f} s)[/]",
        highlight=False,
        soft_wrap=True,
    )


@contextmanager
def timed(title: str) -> Iterator[Note]:
    """Time the block, then print it as a step with its result and duration."""
    started = time.monotonic()
    notes: list[str] = []
    yield notes.append
    step(title, " ".join(notes), time.monotonic() - started)


def decisions(history: History, answers: Decisions, *, spec: FeatureSpec) -> None:
    """Show a sample of decisions, their quality, and their response times."""
    console.out.print(_sample(history, answers))
    console.out.print(_counts(history, answers))
    label = history.label == 1
    usable = ~np.isnan(answers.score)
    console.out.print(
        f"AUC {roc_auc(label[usable], answers.score[usable]):.3f}   average precision "
        f"{average_precision(label[usable], answers.score[usable]):.3f}   "
        f"({int(label.sum())} frauds among {len(label):,}; "
        f"{int((answers.degraded & ~_COLD != 0).sum())} answers degraded)",
        highlight=False,
    )
    console.out.print(_latency(answers))
    next_steps(*_next_commands())


def next_steps(*commands: tuple[str, str]) -> None:
    """Print possible next steps with their commands."""
    console.out.print("next:")
    for what, command in commands:
        text = f"  [dim]{what}[/]\n    {command}"
        console.out.print(text, highlight=False, soft_wrap=True)


def _sample(history: History, answers: Decisions) -> Table:
    table = Table(title="a sample of the decisions")
    for name in ("purchase", "amount", "score"):
        table.add_column(name, justify="right")
    table.add_column("decision")
    table.add_column("reasons")
    table.add_column("truth")
    colour = {"approve": "green", "review": "yellow", "decline": "red"}
    for decision in colour:
        chosen = np.flatnonzero(answers.decision == decision)
        for row in chosen[:: max(1, len(chosen) // _SAMPLE)][:_SAMPLE].tolist():
            table.add_row(
                history.transaction_id[row].decode(),
                f"{history.cents[row] / 100:.2f}",
                f"{answers.score[row]:.3f}",
                f"[{colour[decision]}]{decision}[/]",
                "\n".join(answers.reason_codes[row]),
                "fraud" if history.label[row] == 1 else "",
            )
    return table


def _counts(history: History, answers: Decisions) -> Table:
    table = Table(title="what was decided")
    for name in ("decision", "purchases", "of them fraud", "amount"):
        table.add_column(name, justify="left" if name == "decision" else "right")
    for decision in ("approve", "review", "decline", ""):
        chosen = answers.decision == decision
        if chosen.any():
            table.add_row(
                decision or "error",
                f"{int(chosen.sum()):,}",
                f"{int((history.label[chosen] == 1).sum()):,}",
                f"{history.cents[chosen].sum() / 100:,.2f}",
            )
    return table


def _latency(answers: Decisions) -> Table:
    table = Table(title=f"latency; SLA {SLA_MS} ms, SLO {SLO_MS} ms")
    table.add_column("")
    columns: list[Any] = [50, 99, 99.9]
    for percent in columns:
        table.add_column(f"p{percent:g}", justify="right")
    table.add_column("within SLA", justify="right")
    table.add_column("within SLO", justify="right")
    latency_ms = answers.latency_s * 1e3
    table.add_row(
        "ms",
        *(f"{np.percentile(latency_ms, percent):.1f}" for percent in columns),
        f"{(latency_ms <= SLA_MS).mean():.2%}",
        f"{(latency_ms <= SLO_MS).mean():.2%}",
    )
    return table

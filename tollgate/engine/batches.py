"""Decide any number of rows in batches, with or without the model."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy import Policy, PolicyDecisions, RowFacts, decide
from tollgate.schema import MAX_BATCH_ROWS

I64 = npt.NDArray[np.int64]

Score = Callable[[RowFacts], npt.NDArray[np.float32]]  # probabilities of rows


class TimedDecisions(msgspec.Struct, frozen=True, eq=False):
    """
    Decisions of N rows.

    Attributes:
        took_us: Time that the batch of each row took, µs; int64 [N].
    """

    decisions: PolicyDecisions
    took_us: I64


def decide_in_batches(
    facts: RowFacts,
    *,
    policy: Policy,
    score: Score | None = None,
    batch_rows: int = MAX_BATCH_ROWS,
) -> TimedDecisions:
    """
    Decide rows whose features are known.

    Args:
        facts: N rows, with probabilities unless `score` computes them.
        policy: Decides them.
        score: Computes the probabilities of a batch.
        batch_rows: Rows in a batch, at most.
    """
    parts: list[PolicyDecisions] = []
    took_us = np.zeros(len(facts.cents), np.int64)
    for at in range(0, max(len(facts.cents), 1), batch_rows):
        rows = slice(at, at + batch_rows)
        started_ns = time.perf_counter_ns()
        part = rows_of(facts, rows)
        if score is not None:
            part = msgspec.structs.replace(part, probabilities=score(part))
        parts.append(decide(part, policy=policy))
        took_us[rows] = (time.perf_counter_ns() - started_ns) // 1_000
    columns = {
        name: np.concatenate([getattr(one, name) for one in parts])
        for name in PolicyDecisions.__struct_fields__
    }
    return TimedDecisions(PolicyDecisions(**columns), took_us)


def rows_of(facts: RowFacts, rows: slice | npt.NDArray[np.bool_]) -> RowFacts:
    """Return some of the rows."""
    columns = {
        name: getattr(facts, name)[rows]
        for name in facts.__struct_fields__
        if name != "fields"
    }
    fields = {name: column[rows] for name, column in facts.fields.items()}
    return RowFacts(**columns, fields=fields)

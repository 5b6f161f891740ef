"""
Judge a window of decisions against training: how far apart, and how sure is that.

`docs/monitor.md` says in words what is done here.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.monitor.tallies import Tally
from tollgate.monitor.training import Column, Marks, Reference

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# Share that an empty bin counts as: PSI takes logarithms.
FLOOR = 1e-4

State = Literal["holds", "unsure", "drift", "untold"]
_NORMAL = NormalDist()


class Limits(msgspec.Struct, frozen=True):
    """
    What is not accepted, and how seldom chance may say so.

    Attributes:
        psi: Population stability index; the customary 0.25 is half a σ.
        ks: Largest distance of the distributions; 0.2 is half a σ, too.
        false_alarms: Chance that a release that did not change is ever accused, over
            all its windows, days and columns.
    """

    psi: float = 0.25
    ks: float = 0.2
    false_alarms: float = 0.01


class Verdict(msgspec.Struct, frozen=True):
    """
    One column in one window.

    Attributes:
        kind, name: Of the column.
        state: "drift" when even the least that it can be is beyond a limit; "unsure"
            when the estimate is; "untold" when it cannot be judged here.
        psi, psi_least: Estimate, and the least it is but for the allowed chance.
        ks, ks_least: Likewise.
        sigmas: By how many σ it moved, as if training had been normal; signed.
        missing, missing_trained: Share of rows without a value, now and in training.
        alike: How many rows count as one, because customers are alike (at least 1).
    """

    kind: str
    name: str
    state: State
    psi: float
    psi_least: float
    ks: float
    ks_least: float
    sigmas: float
    missing: float
    missing_trained: float
    alike: float


def chance_of(false_alarms: float, *, look: int, events: int) -> float:
    """
    Tell what chance of a false alarm one statement of one look may have.

    The looks 1, 2, 3, … of a kind get 1/2, 1/6, 1/12, … of half of all there is, which
    adds up to that half however many looks there are; the other half is the days'.

    Args:
        false_alarms: All there is.
        look: Which look it is, from 1 on.
        events: In how many ways this look can go wrong.
    """
    return false_alarms / 2 / (look * (look + 1)) / events


def band(rows: float, chance: float) -> float:
    """
    Tell how far an observed distribution function may be from the true one.

    Dvoretzky, Kiefer and Wolfowitz with the constant of Massart (1990): beyond it,
    anywhere, with no more than this chance; for every sample size and distribution.
    """
    if rows <= 0:
        return 1.0
    return min(1.0, math.sqrt(math.log(2 / chance) / (2 * rows)))


def judge(
    tally: Tally, reference: Reference, *, limits: Limits, look: int
) -> list[Verdict]:
    """
    Judge every column of a window.

    Args:
        tally: The window.
        reference: What it is compared with.
        limits: What is not accepted.
        look: Which window of its kind this is, from 1 on.
    """
    # Values and missing ones of each column, each with served and training rows.
    events = 4 * len(reference.columns)
    chance = chance_of(limits.false_alarms, look=look, events=events)
    return [
        _judged(
            column,
            rows=tally.rows,
            cells=tally.cells[at],
            missing=tally.missing[at],
            trained=reference.rows,
            span_s=tally.event_span_s,
            limits=limits,
            chance=chance,
        )
        for at, column in enumerate(reference.columns)
    ]


def _judged(
    column: Column,
    *,
    rows: I64,
    cells: I64,
    missing: I64,
    trained: int,
    span_s: float,
    limits: Limits,
    chance: float,
) -> Verdict:
    found = int(rows.sum())
    gone = missing.sum() / max(found, 1)
    alike = [_alike(missing[:, None], rows)]
    apart = _apart(np.array([gone]), np.array([column.missing]))
    slack = _slack(found, trained, alike[0], chance)
    least = _apart(_nearer(np.array([gone]), np.array([column.missing]), slack), np.array([column.missing]))
    sigmas = 0.0
    if column.marks is not None and cells.sum():
        there = cells.sum(axis=1)
        seen, near, inner = cumulated(cells.sum(axis=0), column.marks)
        alike.append(_alike(np.cumsum(cells, axis=1)[:, :-1], there))
        slack = _slack(int(there.sum()), trained * (1 - column.missing), alike[1], chance)
        closer = _nearer(seen, near, slack)
        apart = _farther(apart, _apart(seen, near, inner))
        least = _farther(least, _apart(closer, near, inner))
        sigmas = shift(seen[inner], near[inner], rows=int(there.sum()))
    return Verdict(
        kind=column.kind,
        name=column.name,
        state=_state(apart, least, limits, told=found > 0 and span_s >= column.round_s),
        psi=apart[0],
        psi_least=least[0],
        ks=apart[1],
        ks_least=least[1],
        sigmas=sigmas,
        missing=float(gone),
        missing_trained=column.missing,
        alike=max(alike),
    )


def _state(
    apart: tuple[float, float],
    least: tuple[float, float],
    limits: Limits,
    *,
    told: bool,
) -> State:
    if not told:
        return "untold"
    if least[0] > limits.psi or least[1] > limits.ks:
        return "drift"
    return "unsure" if apart[0] > limits.psi or apart[1] > limits.ks else "holds"


def _slack(rows: int, trained: float, alike: float, chance: float) -> float:
    """Tell how far two samples of the same distribution may be apart."""
    own = band(rows / alike, chance)
    # The record of training is exact to a row on either side.
    return own + band(trained / alike, chance) + 1 / max(trained, 1.0)


def cumulated(counts: I64, marks: Marks) -> tuple[F64, F64, npt.NDArray[np.bool_]]:
    """
    Tell the share of rows below and up to each mark, and what training had there.

    Where training is known between two bounds only, what lies nearest to what was
    seen: nobody is accused of what the record does not say.

    Args:
        counts: By cell; [2M + 1].
        marks: M of them.

    Returns:
        Seen and trained share at 2M points, and which of them cut PSI's bins: up to
        each mark but the last, and below those that repeat; [2M] each.
    """
    total = counts.sum()
    upto_cell = np.cumsum(counts) / total
    below, upto = upto_cell[0:-1:2], upto_cell[1::2]
    near_below = np.clip(below, marks.below[:, 0], marks.below[:, 1])
    near_upto = np.clip(upto, marks.upto[:, 0], marks.upto[:, 1])
    # At a value that was listed once, the record says that this share of the rows lies
    # before its last occurrence and behind its first: one statement, not two.
    moved = np.maximum(below - marks.below[:, 1], 0) - np.maximum(
        marks.upto[:, 0] - upto, 0
    )
    single = np.clip(upto - moved, marks.upto[:, 0], marks.upto[:, 1])
    near_upto = np.where(marks.tied, near_upto, single)
    seen, near = np.empty(2 * len(below)), np.empty(2 * len(below))
    seen[0::2], seen[1::2] = below, upto
    near[0::2], near[1::2] = near_below, near_upto
    inner = np.zeros(len(seen), np.bool_)
    inner[1::2] = True
    inner[0::2] = marks.tied
    inner[0] = inner[-1] = False
    return seen, np.maximum.accumulate(near), inner


def _nearer(seen: F64, near: F64, slack: float) -> F64:
    """Move what was seen towards training, as far as chance can have taken it."""
    closer: F64 = np.where(
        seen > near, np.maximum(near, seen - slack), np.minimum(near, seen + slack)
    )
    return closer


def _apart(
    seen: F64, near: F64, inner: npt.NDArray[np.bool_] | None = None
) -> tuple[float, float]:
    """Compute PSI and KS of two distribution functions at the same points."""
    cuts = np.ones(len(seen), np.bool_) if inner is None else inner
    one = np.maximum(np.diff(seen[cuts], prepend=0.0, append=1.0), FLOOR)
    other = np.maximum(np.diff(near[cuts], prepend=0.0, append=1.0), FLOOR)
    psi = float(((one - other) * np.log(one / other)).sum())
    return psi, float(np.abs(seen - near).max())


def _farther(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


def shift(seen: F64, near: F64, *, rows: int) -> float:
    """
    Tell by how many σ a distribution moved, were training normal.

    At each point the normal deviates of both shares differ by the shift, whatever the
    point; points in the middle, which are known best, count most.
    """
    total = weights = 0.0
    least = 0.5 / max(rows, 1)
    for mine, theirs in zip(seen.tolist(), near.tolist(), strict=True):
        if not 0 < theirs < 1:
            continue
        own = _NORMAL.inv_cdf(theirs)
        weight = _NORMAL.pdf(own)
        now = _NORMAL.inv_cdf(min(1 - least, max(least, mine)))
        total += weight * (own - now)
        weights += weight
    return total / weights if weights else 0.0


def _alike(upto: I64, rows: I64) -> float:
    """
    Tell how many rows count as one, because those of a heap are alike.

    The variance of shares between heaps, over what independent rows would give (design
    effect, Kish 1965; random groups, Wolter 2007), mean over the points.

    Args:
        upto: Rows up to each point, by heap; [HEAPS, P].
        rows: By heap; [HEAPS].
    """
    held = rows > 0
    heaps, total = int(held.sum()), int(rows.sum())
    if heaps < 2:
        return float(max(total, 1))  # one customer is one observation
    share = upto.sum(axis=0) / total
    apart = upto[held] - share * rows[held, None]
    found = (apart**2).sum() * heaps / (heaps - 1) / total**2
    independent = (share * (1 - share)).sum() / total
    return max(1.0, float(found / independent)) if independent > 0 else 1.0

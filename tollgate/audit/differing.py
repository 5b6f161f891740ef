"""Compare sealed decisions with decisions computed now; describe the differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.policy import PolicyDecisions
from tollgate.schema import Decision

_WORDS = np.array([level.name.lower() for level in Decision], np.object_)

Bool = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]


def near_rows(was: F32, now: F32, tolerance: float) -> Bool:
    """Return which rows have equal bits or differ by at most `tolerance`; bool [N]."""
    same = _same_bits(was, now)
    if tolerance:
        with np.errstate(invalid="ignore"):
            same |= np.abs(was.astype(np.float64) - now) <= tolerance
    near: Bool = same.all(axis=1)
    return near


def _same_bits(was: F32, now: F32) -> Bool:
    """Compare bit by bit; any two NaN are equal."""
    same: Bool = was.view(np.uint32) == now.view(np.uint32)
    both: Bool = np.isnan(was) & np.isnan(now)
    return same | both


def wrong_by_aspect(
    rows: pl.DataFrame, decided: PolicyDecisions, *, rules: bool
) -> dict[str, Bool]:
    """
    Return by aspect which rows differ; bool [N] each.

    Pass `rules=False` for another release: its rule bits have other meanings.
    """
    codes = [one.decode() for one in decided.reason_codes.tolist()]
    score = np.ascontiguousarray(rows["score"].to_numpy(), np.float32)
    found: dict[str, Bool] = {
        "score": ~_same_bits(score, decided.score),
        "decision": rows["decision"].to_numpy() != _WORDS[decided.decision],
        "codes": (rows["reason_codes"] != pl.Series(codes, dtype=pl.String)).to_numpy(),
        "degraded": rows["degraded"].to_numpy() != decided.degraded,
    }
    if rules:
        found["rules"] = rows["rules"].to_numpy() != decided.rules
    return found


def describe_difference(
    aspect: str,
    row: int,
    rows: pl.DataFrame,
    decided: PolicyDecisions,
    *,
    was: F32,
    now: F32,
) -> str:
    """Describe one aspect of a record: value as sealed → value computed now."""
    if aspect == "probabilities":
        return f"probabilities {_numbers(was[row])} → {_numbers(now[row])}"
    if aspect == "score":
        return f"score {_numbers([rows['score'][row]])} → " + _numbers(
            [decided.score[row]]
        )
    if aspect == "decision":
        return f"decision {rows['decision'][row]} → {_WORDS[decided.decision[row]]}"
    if aspect == "codes":
        after = decided.reason_codes[row].decode()
        return f"codes {rows['reason_codes'][row] or 'none'} → {after or 'none'}"
    if aspect == "degraded":
        return f"degraded {rows['degraded'][row]:#x} → {int(decided.degraded[row]):#x}"
    return f"rules {rows['rules'][row]:#b} → {int(decided.rules[row]):#b}"


def _numbers(values: Sequence[float] | F32) -> str:
    """Write float32 values so that different bits give different texts."""
    return ", ".join(f"{float(one):.9g}" for one in values)

"""Split rows into those to train on and those to judge the model on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tollgate.errors import ArgumentError
from tollgate.features.spec.feature_spec import FeatureSpec

Bool = npt.NDArray[np.bool_]

DAY_US = 86_400_000_000
_HELD_OUT = 0.2
_MIN_COMPLETE = 0.5  # of the rows to learn from, to get complete windows


def split(
    label: npt.NDArray[np.int8],
    *,
    time_us: npt.NDArray[np.int64],
    spec: FeatureSpec,
    label_delay_us: int = 0,
) -> tuple[Bool, Bool]:
    """
    Divide rows into those to learn from and those to judge on.

    Rows whose longest window begins before the table does are not learned from, unless
    they are more than half: served windows are complete. Nor are rows whose outcome was
    not known yet when the first row to judge on came.

    Args:
        label: 1 for the outcome, else 0; int8 [N].
        time_us: Times of the rows, µs; int64 [N].
        spec: The product's features.
        label_delay_us: Time from a row until its outcome is known, µs.

    Returns:
        Masks of the rows to learn from and of those to judge on; bool [N] each.

    Raises:
        InputError: Labels have a delay, and no row of one outcome is left before the
            rows to judge on.
    """
    test = held_out(label, time_us=time_us)
    past = known_before(test, label, time_us=time_us, label_delay_us=label_delay_us)
    longest_us = max((one.windows_us[-1] for one in spec.entities), default=0)
    complete = past & (time_us >= time_us.min() + longest_us)
    enough = complete.sum() >= _MIN_COMPLETE * past.sum()
    both = len(np.unique(label[complete])) == 2
    return (complete if enough and both else past), test


def known_before(
    test: Bool,
    label: npt.NDArray[np.int8],
    *,
    time_us: npt.NDArray[np.int64],
    label_delay_us: int,
) -> Bool:
    """
    Select the rows whose outcome was known when the first held-out row came; bool [N].

    Raises:
        InputError: The held-out rows are not the last ones, or no row of one outcome is
            left.
    """
    if not label_delay_us:
        return ~test
    first_us = time_us[test].min()
    known: Bool = ~test & (time_us + label_delay_us <= first_us)
    days = label_delay_us / DAY_US
    if len(np.unique(label[known])) < 2:
        problem = (
            f"outcomes are known after {days:g} days: before the last fifth of the "
            "rows there are not both outcomes to learn from; bring a longer table"
        )
        raise ArgumentError("label_delay", problem)
    return known


def held_out(label: npt.NDArray[np.int8], *, time_us: npt.NDArray[np.int64]) -> Bool:
    """
    Choose a fifth of the rows to judge a model on; bool [N].

    These are the last ones, as in production, if rows have different times and both
    outcomes are among the last and the earlier ones. Otherwise a fifth of each outcome,
    drawn at random.
    """
    test = _newest_fifth(label, time_us)
    return _random_fifth(label, np.random.default_rng(0)) if test is None else test


def describe(test: Bool, *, time_us: npt.NDArray[np.int64]) -> str:
    """Describe the rows that `held_out` chose."""
    first, last = time_us[test].min(), time_us[test].max()
    if first < time_us[~test].max() or first == last == time_us.min():
        return "a fifth of each outcome, drawn by chance"
    since, until = (
        np.datetime64(int(one), "us").astype("M8[D]") for one in (first, last)
    )
    return f"the last fifth in time, {since} to {until}"


def _newest_fifth(
    label: npt.NDArray[np.int8], time_us: npt.NDArray[np.int64]
) -> Bool | None:
    """Select the last fifth in time; None if one outcome is then missing."""
    order = np.argsort(time_us, kind="stable")
    if not len(order) or time_us[order[0]] == time_us[order[-1]]:
        return None
    test = np.zeros(len(label), np.bool_)
    test[order[len(label) - round(_HELD_OUT * len(label)) :]] = True
    both = all(len(np.unique(label[part])) == 2 for part in (test, ~test))
    return test if both else None


def _random_fifth(label: npt.NDArray[np.int8], chance: np.random.Generator) -> Bool:
    test = np.zeros(len(label), np.bool_)
    for outcome in (0, 1):
        of_it = chance.permutation(np.flatnonzero(label == outcome))
        test[of_it[: round(_HELD_OUT * len(of_it))]] = True
    return test

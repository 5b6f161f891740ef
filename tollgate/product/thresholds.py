"""Choose the first thresholds of a product from rows that its model never saw."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import ArgumentError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

FEWEST_DECLINED = (
    20  # rows that a score must decline, before their share means anything
)
_FEW_POSITIVES = 30  # with fewer, another sample would give very different thresholds
# Scores that differ by less, relative to the score, get the same decision: a converted
# model differs from its source by some 7e-7, because it adds in float32.
_NEAREST = 4e-6
_DIGITS = 17  # decimals of a threshold; more only between scores below 1e-9


class Costs(msgspec.Struct, frozen=True):
    """
    Cost of each decision on one row, in any unit.

    Attributes:
        missed: Cost of approving a row that has the outcome.
        review: Cost of reviewing a row; a review finds the outcome.
        wrong_decline: Cost of declining a row without the outcome; None where no score
            may decline.
    """

    missed: float
    review: float
    wrong_decline: float | None = None


class Rates(msgspec.Struct, frozen=True):
    """
    Shares of all rows to review and to decline.

    Attributes:
        review: Share to review; None for the share of rows that have the outcome.
        decline: Share to decline, the highest scores; 0 where no score may decline.
    """

    review: float | None = None
    decline: float = 0.0


Goal = Costs | Rates


class Levels(msgspec.Struct, frozen=True, eq=False):
    """
    Groups of scores that no threshold separates, the highest first.

    Attributes:
        high, low: The highest and the lowest score of each; float64 [L].
    """

    high: F64
    low: F64


class Thresholds(msgspec.Struct, frozen=True):
    """
    Thresholds, with their effect on the rows that they were chosen on.

    Attributes:
        goal: The stated criterion.
        origin: Description of the rows.
        review: Score from which a row is reviewed.
        decline: Score from which it is declined; None where no score declines.
        rows: Number of rows.
        positives: Number of rows with the outcome.
        reviewed, declined: Number of rows with each decision.
        found_reviewed, found_declined: Number of these with the outcome.
    """

    goal: Goal
    origin: str
    review: float
    decline: float | None
    rows: int
    positives: int
    reviewed: int
    declined: int
    found_reviewed: int
    found_declined: int

    @property
    def cost(self) -> float | None:
        """
        Return the cost of these decisions on the rows; None if no costs were stated.
        """
        if not isinstance(self.goal, Costs):
            return None
        missed = self.positives - self.found_reviewed - self.found_declined
        wrong = (self.declined - self.found_declined) * (self.goal.wrong_decline or 0)
        return missed * self.goal.missed + self.reviewed * self.goal.review + wrong

    @property
    def few(self) -> bool:
        """Return whether the rows have too few outcomes to rely on the thresholds."""
        return self.positives < _FEW_POSITIVES


def build_goal(
    *,
    missed: float | None,
    review: float | None,
    wrong_decline: float | None,
    review_rate: float | None,
    decline_rate: float | None,
) -> Goal:
    """
    Build the stated criterion: costs, or shares of the rows.

    Raises:
        InputError: Both are stated, or a part is missing or out of range.
    """
    costs = {
        "cost_missed": missed,
        "cost_review": review,
        "cost_wrong_decline": wrong_decline,
    }
    rates = {"review_rate": review_rate, "decline_rate": decline_rate}
    stated = [name for name, value in costs.items() if value is not None]
    rated = [name for name, value in rates.items() if value is not None]
    if stated and rated:
        problem = "states a cost and a rate: state either costs or rates"
        raise ArgumentError(f"{stated[0]}, {rated[0]}", problem)
    for name in stated:
        value = costs[name]
        if value is not None and not 0 < value < np.inf:
            raise ArgumentError(name, f"{value:g} is not a number above 0")
    for name in rated:
        value = rates[name]
        if value is not None and not 0 <= value <= 1:
            raise ArgumentError(name, f"{value:g} is not a share from 0 to 1")
    if stated:
        if missed is None or review is None:
            absent = "a missed one" if missed is None else "a review"
            problem = f"needs the cost of {absent} as well: costs are compared"
            raise ArgumentError(stated[0], problem)
        return Costs(missed, review, wrong_decline)
    share, most = review_rate, decline_rate or 0.0
    if (share or 0) + most > 1:
        raise ArgumentError("review_rate, decline_rate", "are more than all rows")
    if share == 0 and most == 0:
        problem = "is 0, and so is the rate of declines: no row would be reviewed"
        raise ArgumentError("review_rate", problem)
    return Rates(share, most)


def choose_thresholds(
    score: npt.NDArray[np.float64],
    label: npt.NDArray[np.int8],
    *,
    goal: Goal,
    origin: str,
) -> Thresholds:
    """
    Choose thresholds from held-out scores.

    With costs: those that cost least on these rows. With shares: the highest scores are
    declined, at most as many as stated, and about the stated share of the next ones is
    reviewed. No score declines where it may not, or where it would decline fewer than
    20 of the rows.

    Args:
        score: Scores of rows that the model was not trained on; [N].
        label: 1 for the outcome, else 0; [N].
        goal: The stated criterion.
        origin: Description of the rows.

    Raises:
        InputError: No row would be reviewed or declined.
    """
    served = np.asarray(score, np.float32).astype(np.float64)  # as served
    descending = np.argsort(-served, kind="stable")
    high = served[descending]
    # A threshold lies between two levels, the highest first.
    (last,) = np.append(high[:-1] - high[1:] > _NEAREST * high[:-1], True).nonzero()
    first = np.append(0, last[:-1] + 1)
    levels = Levels(high=high[first], low=high[last])
    of_level = last - first + 1
    found_of = np.add.reduceat(label[descending].astype(np.int64), first)
    flagged = np.append(0, np.cumsum(of_level))  # by the number of levels above it
    found = np.append(0, np.cumsum(found_of))
    may = flagged >= FEWEST_DECLINED
    if isinstance(goal, Costs):
        to_decline, to_review = _cheapest(goal, flagged, found=found, may=may)
    else:
        to_decline, to_review = _nearest(goal, flagged, found=found, may=may)
    return Thresholds(
        goal=goal,
        origin=origin,
        review=_between(levels, to_review),
        decline=_between(levels, to_decline) if to_decline else None,
        rows=len(served),
        positives=int(found[-1]),
        reviewed=int(flagged[to_review] - flagged[to_decline]),
        declined=int(flagged[to_decline]),
        found_reviewed=int(found[to_review] - found[to_decline]),
        found_declined=int(found[to_decline]),
    )


def _cheapest(
    goal: Costs, flagged: I64, *, found: I64, may: npt.NDArray[np.bool_]
) -> tuple[int, int]:
    """
    Return how many levels to decline, and to decline or review, at the least cost.

    The total cost is a sum of two terms: one of the rows that pass or are reviewed,
    which depends on the second number; and one of the rows that are declined instead of
    reviewed, which depends on the first. The first number is not above the second.
    """
    passing = goal.missed * (found[-1] - found) + goal.review * flagged
    declining = np.full(len(flagged), np.inf)
    declining[0] = 0.0
    if goal.wrong_decline is not None:
        instead = goal.wrong_decline * (flagged - found) - goal.review * flagged
        declining[may] = instead[may]
    # The best number of levels to decline, for each upper limit of it.
    best, at = 0, np.zeros(len(flagged), np.int64)
    for place, cost in enumerate(declining.tolist()):
        best = place if cost < declining[best] else best
        at[place] = best
    to_review = int(np.argmin(passing + declining[at]))
    if not to_review:
        problem = (
            f"{goal.missed:g} to miss one and {goal.review:g} to review one: no "
            f"held-out row of {flagged[-1]:,} is worth a review, so state other costs "
            "or a review rate"
        )
        raise ArgumentError("cost_missed, cost_review", problem)
    return int(at[to_review]), to_review


def _nearest(
    goal: Rates, flagged: I64, *, found: I64, may: npt.NDArray[np.bool_]
) -> tuple[int, int]:
    """Return how many levels to decline, and to decline or review, by shares."""
    rows, positives = int(flagged[-1]), int(found[-1])
    most = flagged <= round(goal.decline * rows)
    to_decline = int(np.flatnonzero(most & (may | (flagged == 0)))[-1])
    if goal.review == 0:
        if to_decline:
            return to_decline, to_decline
        problem = (
            f"{goal.decline:g}: no score declines at least {FEWEST_DECLINED} and at "
            f"most so many of the {rows:,} held-out rows; state a review rate as well"
        )
        raise ArgumentError("decline_rate", problem)
    share = positives / rows if goal.review is None else goal.review
    wanted = max(round(share * rows), 1) + flagged[to_decline]
    to_review = int(np.flatnonzero(flagged <= wanted)[-1])
    # Equal scores get the same decision: if the first level alone is too large, take
    # it.
    least = min(to_decline + 1, len(flagged) - 1)
    return to_decline, max(to_review, least)


def _between(levels: Levels, count: int) -> float:
    """Return the shortest number between the last included level and the next."""
    if count == len(levels.low):
        return 0.0
    high, low = float(levels.low[count - 1]), float(levels.high[count])
    room = (high - low) / 4  # a served score may differ from the model's by a float32
    for digits in range(1, _DIGITS + 1):
        found = round((low + high) / 2, digits)
        if low + room <= found <= high - room:
            return found
    return (low + high) / 2

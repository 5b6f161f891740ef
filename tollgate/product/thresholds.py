"""Choose the first thresholds of a product from rows that its model never saw."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_FEWEST = 20  # rows that a score must decline, before their share says anything
_FEW_POSITIVES = 30  # below, another sample would give quite other thresholds
_DIGITS = 17  # decimals of a threshold; more only between scores below 1e-9


class Costs(msgspec.Struct, frozen=True):
    """
    What a decision about one row costs, in any unit.

    Attributes:
        missed: To approve a row that has the outcome.
        review: To review a row; a review finds the outcome.
        wrong_decline: To decline a row without the outcome; None where no score may
            decline.
    """

    missed: float
    review: float
    wrong_decline: float | None = None


class Rates(msgspec.Struct, frozen=True):
    """
    Which shares of all rows are to be reviewed and declined.

    Attributes:
        review: Share to review; None for the share of rows that have the outcome.
        decline: Share to decline, the highest scores; 0 where no score may decline.
    """

    review: float | None = None
    decline: float = 0.0


Goal = Costs | Rates


class Chosen(msgspec.Struct, frozen=True):
    """
    Thresholds, with what they do on the rows that they were chosen on.

    Attributes:
        goal: What was stated.
        origin: Which rows they were, in words.
        review: Score from which a row is reviewed.
        decline: Score from which it is declined; None where no score declines.
        rows: How many rows there were.
        positives: How many had the outcome.
        reviewed, declined: How many rows get each.
        found_reviewed, found_declined: How many of these had the outcome.
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
        """What these decisions cost on the rows; None where no costs were stated."""
        if not isinstance(self.goal, Costs):
            return None
        missed = self.positives - self.found_reviewed - self.found_declined
        wrong = (self.declined - self.found_declined) * (self.goal.wrong_decline or 0)
        return missed * self.goal.missed + self.reviewed * self.goal.review + wrong

    @property
    def few(self) -> bool:
        """Whether the rows have too few outcomes to rely on the thresholds."""
        return self.positives < _FEW_POSITIVES


def goal_of(
    *,
    missed: float | None,
    review: float | None,
    wrong_decline: float | None,
    review_rate: float | None,
    decline_rate: float | None,
) -> Goal:
    """
    Take what a person stated: costs, or shares of the rows.

    Raises:
        InputError: It is both, or a part of it is missing or out of range.
    """
    costs = {
        "--cost-missed": missed,
        "--cost-review": review,
        "--cost-wrong-decline": wrong_decline,
    }
    rates = {"--review-rate": review_rate, "--decline-rate": decline_rate}
    stated = [name for name, value in costs.items() if value is not None]
    rated = [name for name, value in rates.items() if value is not None]
    if stated and rated:
        problem = "states a cost and a rate: state either costs or rates"
        raise InputError(f"{stated[0]}, {rated[0]}", problem)
    for name in stated:
        value = costs[name]
        if value is not None and not 0 < value < np.inf:
            raise InputError(name, f"{value:g} is not a number above 0")
    for name in rated:
        value = rates[name]
        if value is not None and not 0 <= value <= 1:
            raise InputError(name, f"{value:g} is not a share from 0 to 1")
    if stated:
        if missed is None or review is None:
            absent = "--cost-missed" if missed is None else "--cost-review"
            raise InputError(stated[0], f"needs {absent} as well: costs are compared")
        return Costs(missed, review, wrong_decline)
    share, most = review_rate, decline_rate or 0.0
    if (share or 0) + most > 1:
        raise InputError("--review-rate, --decline-rate", "are more than all rows")
    if share == 0 and most == 0:
        problem = "is 0, and so is --decline-rate: nothing would be looked at"
        raise InputError("--review-rate", problem)
    return Rates(share, most)


def choose(
    score: npt.NDArray[np.float64],
    label: npt.NDArray[np.int8],
    *,
    goal: Goal,
    origin: str,
) -> Chosen:
    """
    Choose thresholds from held-out scores.

    With costs: those that cost least on these rows. With shares: the highest scores
    are declined, at most so many, and about so many of the next are reviewed. No score
    declines where it may not, or where it would decline fewer than 20 of the rows.

    Args:
        score: Of rows that the model was not trained on; [N].
        label: 1 for the outcome, else 0; [N].
        goal: What was stated.
        origin: Which rows they are, in words.

    Raises:
        InputError: No row would be reviewed or declined.
    """
    served = np.asarray(score, np.float32).astype(np.float64)  # as an answer has it
    levels, group = np.unique(-served, return_inverse=True)
    levels = -levels  # the highest first; a threshold lies between two of them
    of_level = np.bincount(group, minlength=len(levels))
    found_of = np.bincount(group, weights=label, minlength=len(levels))
    flagged = np.append(0, np.cumsum(of_level))  # by the number of levels above it
    found = np.append(0, np.cumsum(found_of)).astype(np.int64)
    may = flagged >= _FEWEST
    if isinstance(goal, Costs):
        to_decline, to_review = _cheapest(goal, flagged, found=found, may=may)
    else:
        to_decline, to_review = _nearest(goal, flagged, found=found, may=may)
    return Chosen(
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

    The cost of both is a sum: of the rows that are let pass or reviewed by one number,
    and of those declined instead of reviewed by the other, which is not above it.
    """
    passing = goal.missed * (found[-1] - found) + goal.review * flagged
    declining = np.full(len(flagged), np.inf)
    declining[0] = 0.0
    if goal.wrong_decline is not None:
        instead = goal.wrong_decline * (flagged - found) - goal.review * flagged
        declining[may] = instead[may]
    # The best number of levels to decline, for each number not below it.
    best, at = 0, np.zeros(len(flagged), np.int64)
    for place, cost in enumerate(declining.tolist()):
        best = place if cost < declining[best] else best
        at[place] = best
    to_review = int(np.argmin(passing + declining[at]))
    if not to_review:
        problem = (
            f"{goal.missed:g} to miss one and {goal.review:g} to review one: no "
            f"held-out row of {flagged[-1]:,} is worth a review, so state other costs "
            "or a --review-rate"
        )
        raise InputError("--cost-missed, --cost-review", problem)
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
            f"{goal.decline:g}: no score declines at least {_FEWEST} and at most so "
            f"many of the {rows:,} held-out rows; state a --review-rate as well"
        )
        raise InputError("--decline-rate", problem)
    share = positives / rows if goal.review is None else goal.review
    wanted = max(round(share * rows), 1) + flagged[to_decline]
    to_review = int(np.flatnonzero(flagged <= wanted)[-1])
    # Equal scores go together: where even the first ones are too many, those.
    least = min(to_decline + 1, len(flagged) - 1)
    return to_decline, max(to_review, least)


def _between(levels: F64, count: int) -> float:
    """Return the shortest number between the last level that is taken and the next."""
    high = float(levels[count - 1])
    if count == len(levels):
        return 0.0
    low = float(levels[count])
    room = (high - low) / 4  # a served score may be a float32 away from the model's own
    for digits in range(1, _DIGITS + 1):
        found = round((low + high) / 2, digits)
        if low + room <= found <= high - room:
            return found
    return (low + high) / 2

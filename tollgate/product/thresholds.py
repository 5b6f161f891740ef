"""Choose the first thresholds of a product from rows that its model never saw."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

_RIGHT = 0.75  # of the declined rows so many must have the outcome
_REVIEWED = 0.1  # share of the rows that a person can look at
_FEWEST = 20  # rows at a score, before their share says anything
_DECIMALS = 4


class Chosen(msgspec.Struct, frozen=True):
    """
    Thresholds, with what they do on the rows that they were chosen on.

    Attributes:
        review, decline: Scores.
        rows: How many rows there were.
        positives: How many had the outcome.
        reviewed, declined: How many rows get each.
        found_reviewed, found_declined: How many of these had the outcome.
    """

    review: float
    decline: float
    rows: int
    positives: int
    reviewed: int
    declined: int
    found_reviewed: int
    found_declined: int


def choose(score: npt.NDArray[np.float64], label: npt.NDArray[np.int8]) -> Chosen:
    """
    Choose thresholds from held-out scores.

    Declined is from the lowest score on from which three of four rows have the
    outcome, but never more than half of all rows; when there is none, nothing is.
    Reviewed is the tenth of all rows that comes next.

    Args:
        score: Of rows that the model was not trained on; [N].
        label: 1 for the outcome, else 0; [N].
    """
    decline = _decline(score, label)
    below = np.sort(score[score < decline])
    wanted = min(round(_REVIEWED * len(score)), len(below))
    review = decline
    if wanted:
        review = min(_rounded(float(below[-wanted])), decline)
    declined = score >= decline
    reviewed = (score >= review) & ~declined
    return Chosen(
        review=review,
        decline=decline,
        rows=len(score),
        positives=int(label.sum()),
        reviewed=int(reviewed.sum()),
        declined=int(declined.sum()),
        found_reviewed=int(label[reviewed].sum()),
        found_declined=int(label[declined].sum()),
    )


def _decline(score: npt.NDArray[np.float64], label: npt.NDArray[np.int8]) -> float:
    order = np.argsort(-score, kind="stable")
    found = np.cumsum(label[order])
    rows = np.arange(1, len(score) + 1)
    falling = score[order]
    edge = np.append(falling[1:] < falling[:-1], True)  # equal scores go together
    good = (found >= _RIGHT * rows) & (rows >= _FEWEST) & (rows <= len(score) / 2)
    good &= edge
    if not good.any():
        return 1.0
    last = int(np.flatnonzero(good)[-1])
    return _rounded(float(score[order[last]]))


def _rounded(score: float) -> float:
    return float(np.clip(np.round(score, _DECIMALS), 0.0001, 1.0))

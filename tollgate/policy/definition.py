"""A policy as values: what a policy.yaml means, compiled."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.tables import Tables
from tollgate.schema import Decision

OTHER = "other"  # the segment of a row that is in none
SCORE_REVIEW, SCORE_DECLINE = "SCORE_REVIEW", "SCORE_DECLINE"
MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
ESSENTIAL_MISSING = "ESSENTIAL_MISSING"
# They stand first in every answer, in this order.
OWN_CODES = (MODEL_UNAVAILABLE, SCORE_DECLINE, SCORE_REVIEW, ESSENTIAL_MISSING)


class Score(msgspec.Struct, frozen=True):
    """
    How probabilities become one score.

    Attributes:
        weights: Column of a label, and what its probability counts; by label.
        plain: It is one column as it comes.
        decimals: To how many it is rounded; None for not at all.
    """

    weights: tuple[tuple[int, float], ...]
    plain: bool
    decimals: int | None

    def of(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Compute it; [N, K] → [N]. One column after the other: rows stay alone."""
        if self.plain:
            found = probabilities[:, self.weights[0][0]].astype(np.float64)
        else:
            found = np.zeros(len(probabilities))
            for column, weight in self.weights:
                found += probabilities[:, column].astype(np.float64) * weight
            np.minimum(found, 1.0, out=found)
        return found if self.decimals is None else np.round(found, self.decimals)


class Thresholds(msgspec.Struct, frozen=True):
    """
    Of one segment.

    Attributes:
        review: Score from which a purchase is reviewed; within [0, decline].
        decline: Score from which it is declined; within [review, 1]. None where no
            score declines.
        fallback: Decision without a usable score.
    """

    review: float
    decline: float | None
    fallback: Decision


class Levels(msgspec.Struct, frozen=True, eq=False):
    """
    Thresholds by the number of a segment: float64 [S + 1], and uint8.

    `decline` is infinite where no score declines.
    """

    review: npt.NDArray[np.float64]
    decline: npt.NDArray[np.float64]
    fallback: npt.NDArray[np.uint8]


class Rule(msgspec.Struct, frozen=True):
    """
    How far a rule moves the decision of a row that it holds for.

    Attributes:
        name, owner: What it is called, and who answers for it.
        at_least: It raises the decision to this; APPROVE for not at all.
        at_most: It lowers it to this; DECLINE for not at all.
        code: Position of its reason code.
        stop: No later rule is applied to the row.
    """

    name: str
    owner: str
    at_least: Decision
    at_most: Decision
    code: int
    stop: bool


class Meaning(msgspec.Struct, frozen=True):
    """
    What a degraded bit makes of a decision.

    Attributes:
        bit: Its value.
        code: Position of the reason code that it gives.
        at_least: The decision is at least this, whatever the rules say.
        fallback: The score is not used: this decides in place of the thresholds.
    """

    bit: int
    code: int
    at_least: Decision = Decision.APPROVE
    fallback: Decision | None = None


class PolicyList(msgspec.Struct, frozen=True):
    """A set of ids in the store; bit i of `list_hits` is the i-th of them."""

    name: str
    of: str
    meaning: Literal["allow", "deny"]


class Notice(msgspec.Struct, frozen=True):
    """
    What a notice to a person who was refused says.

    Attributes:
        most: So many reasons at most, 1 to 4.
        never: Codes that are no reason to a person.
    """

    most: int
    never: frozenset[str]


class Policy(msgspec.Struct, frozen=True, eq=False):
    """
    Everything that decides the purchases of one product.

    Attributes:
        product: Name of the ensemble.
        labels: Names of the K probability columns.
        score: How they become a score.
        sum_within: How far from 1 their sum may be; None for anywhere.
        segments: Names of the segments, OTHER first.
        thresholds: Of each of them.
        rules: In the order in which they are applied.
        meanings: Of degraded bits; of MODEL_OUTPUT say `thresholds`.
        lists: What the store is asked for.
        codes: Reason codes, in the order in which they appear in an answer.
        reasons: Text per code; a built-in one where the file has none for a code
            that it need not know.
        contributions: Code of a feature that raised the score; by feature.
        consent: Declared field that says whether a row may be kept; None for none.
        idempotency_s: How long an answer stands for its transaction id.
        tables: What segments and rules ask for, as arrays.
        levels: The thresholds, as arrays.
        score_cuts: Scores at which a decision may change, ascending.
        notice: What a notice says; None for a product that sends none.
        sensitive: What nobody may be judged by; none is an input.
    """

    product: str
    labels: tuple[str, ...]
    score: Score
    sum_within: float | None
    segments: tuple[str, ...]
    thresholds: tuple[Thresholds, ...]
    rules: tuple[Rule, ...]
    meanings: tuple[Meaning, ...]
    lists: tuple[PolicyList, ...]
    codes: tuple[str, ...]
    reasons: dict[str, str]
    contributions: dict[str, str]
    consent: str | None
    idempotency_s: int
    tables: Tables
    levels: Levels
    score_cuts: tuple[float, ...]
    notice: Notice | None = None
    sensitive: tuple[str, ...] = ()

"""Define the compiled policy: thresholds, rules, lists and reason codes as values."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.decision_tables import ConditionTable
from tollgate.policy.hysteresis import Hysteresis
from tollgate.policy.ranking_rules import RankingRules
from tollgate.schema import DEFAULT_OUTCOMES, Decision, Outcomes

OTHER = "other"  # the segment of rows in no other segment
MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
ESSENTIAL_MISSING = "ESSENTIAL_MISSING"
# The first codes of every policy are those of `own_codes`, in this order.
UNAVAILABLE_AT, DECLINED_AT, REVIEWED_AT = 0, 1, 2


class Score(msgspec.Struct, frozen=True):
    """
    Computation of one score from the probabilities.

    Attributes:
        weights: Column of a label, and the weight of its probability; by label.
        plain: True if the score is one column, unchanged.
        decimals: Decimals to round to; None for no rounding.
        number: True if the answer is a number in its own unit, no probability.
        sign: 1 if a higher score is worse, -1 if a lower one is.
    """

    weights: tuple[tuple[int, float], ...]
    plain: bool
    decimals: int | None
    number: bool = False
    sign: float = 1.0

    @property
    def limits(self) -> tuple[float, float]:
        """Return the lowest and the highest valid answer of a model."""
        most = float(np.finfo(np.float32).max)
        return (-most, most) if self.number else (0.0, 1.0)

    def of(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Compute the score, [N, K] → [N], by columns: no row affects another."""
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
    Thresholds of one segment.

    Attributes:
        review: Score from which a purchase is reviewed.
        decline: Score from which it is declined, at least as bad as `review`. None
            where no score declines. Both are within [0, 1] unless the score is a
            number.
        fallback: Decision without a usable score.
    """

    review: float
    decline: float | None
    fallback: Decision


class Levels(msgspec.Struct, frozen=True, eq=False):
    """
    Thresholds by the number of a segment: float64 [S + 1], and uint8.

    They are multiplied by the score's sign: a score times the sign reaches them.
    `decline` is infinite where no score declines.
    """

    review: npt.NDArray[np.float64]
    decline: npt.NDArray[np.float64]
    fallback: npt.NDArray[np.uint8]


class Rule(msgspec.Struct, frozen=True):
    """
    A rule's effect on the decision of a row that it holds for.

    Attributes:
        name, owner: Name of the rule, and the person or team responsible for it.
        at_least: It raises the decision to this; APPROVE for not at all.
        at_most: It lowers it to this; DECLINE for not at all. A rule with
            `before_model` does both.
        code: Position of its reason code.
        stop: True if no later rule is applied to the row.
    """

    name: str
    owner: str
    at_least: Decision
    at_most: Decision
    code: int
    stop: bool


class Meaning(msgspec.Struct, frozen=True):
    """
    A degraded bit's effect on a decision.

    Attributes:
        code: Position of the reason code that it gives.
        at_least: Lowest decision with this bit, regardless of the rules.
        fallback: Decision in place of the thresholds; the score is not used.
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


MOST_REASONS = 4  # of a notice: the principal ones, 12 CFR 1002.9(b)(2)


class Notice(msgspec.Struct, frozen=True):
    """
    Content of an adverse action notice.

    Attributes:
        most: Largest number of reasons, 1 to 4.
        never: Codes that are no reason to a person.
    """

    most: int
    never: frozenset[str]


class Policy(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """
    A compiled policy: everything that decides the purchases of one product.

    Attributes:
        labels: Names of the K probability columns.
        score: Computation of a score from them.
        sum_within: Largest distance of their sum from 1; None for any sum.
        segments: Names of the segments, OTHER first.
        thresholds: Thresholds of each segment.
        rules: Rules in the order in which they are applied.
        meanings: Effects of degraded bits; `thresholds` has that of MODEL_OUTPUT.
        lists: Lists to look up in the store.
        codes: Reason codes, in the order in which they appear in a decision.
        reasons: Text per code; a built-in one for a code that the file need not declare
            and has no text for.
        contributions: Code of a feature that raised the score; by feature.
        consent: Declared field that says whether a row may be stored; None for none.
        idempotency_s: Time that a decision is valid for its transaction id, s.
        score_cuts: Scores at which a decision may change, ascending.
        notice: Content of a notice; None for a product that sends none.
        sensitive: Attributes that must not influence decisions; none is an input.
        before_model: Number of rules, the first ones, that decide before the model.
        outcomes: Words of the product for the levels of a decision.
        hysteresis: Turns the levels of an entity's rows into answered ones, after all
            that is above; None for a policy without it.
        ranking: Turns scored items into a list; None for a product that ranks none.
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
    tables: ConditionTable
    levels: Levels
    score_cuts: tuple[float, ...]
    notice: Notice | None = None
    sensitive: tuple[str, ...] = ()
    before_model: int = 0
    outcomes: Outcomes = DEFAULT_OUTCOMES
    hysteresis: Hysteresis | None = None
    ranking: RankingRules | None = None

    def unscored(self, rules: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """
        Return which rows a rule decided before the model; bool [N].

        Args:
            rules: Bit i is set when the i-th rule held; uint64 [N].
        """
        first = np.uint64((1 << self.before_model) - 1)
        found: npt.NDArray[np.bool_] = (rules & first) != 0
        return found

"""Read `policy.yaml` and compile it into comparisons over columns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from tollgate.errors import PolicyError
from tollgate.schema import AMOUNT, REASON_SEPARATOR, Decision, Degraded

POLICY_VERSION = 1
POLICY_FILE = "policy.yaml"
SCORE = "score"
SCORE_REVIEW, SCORE_DECLINE = "SCORE_REVIEW", "SCORE_DECLINE"
MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
ESSENTIAL_MISSING = "ESSENTIAL_MISSING"
# Given whatever the policy says, so a policy need not know of it: features.yaml
# declares what is essential, and an older policy stays valid when it does.
_BUILT_IN = {ESSENTIAL_MISSING: "Data this decision needs is missing or too old."}

Level = Literal["approve", "review", "decline"]
Operator = Literal["ge", "gt", "le", "lt", "eq", "ne"]

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("ge", "gt", "le", "lt", "eq", "ne")
}
_LEVELS = {level.name.lower(): level for level in Decision}
_MAX_CODES = 63  # they travel as bits of one integer


class RawThresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scores at or above which a purchase is reviewed or declined."""

    review: float
    decline: float


class RawFallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to decide without a usable score."""

    model_output: Level


class RawRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule as written."""

    name: str
    owner: str
    when: dict[str, bool | dict[Operator, float]]
    code: str
    at_least: Level | None = None
    at_most: Level | None = None


class RawPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file as written."""

    version: int
    product: str
    labels: list[str]
    score: str
    thresholds: RawThresholds
    fallback: RawFallback
    rules: list[RawRule]
    reasons: dict[str, str]


class Condition(msgspec.Struct, frozen=True):
    """One comparison; `column` is a feature's position, or -1 for `field`."""

    field: str
    column: int
    compare: Callable[[Any, Any], Any]
    value: float


class Rule(msgspec.Struct, frozen=True):
    """Conditions that must all hold, and how far the decision then moves."""

    name: str
    conditions: tuple[Condition, ...]
    at_least: Decision
    at_most: Decision
    code: int


class Policy(msgspec.Struct, frozen=True):
    """
    Thresholds and rules of one product, compiled.

    Attributes:
        labels: Names of the K probability columns.
        score_column: Which of them is the score.
        review: Score from which a purchase is reviewed; within [0, decline].
        decline: Score from which it is declined; within [review, 1].
        fallback: Decision without a usable score.
        rules: In the order in which they are applied.
        codes: Reason codes, in the order in which they appear in an answer.
        reasons: Text per code; a built-in one where the file has none for a code
            that it need not know.
    """

    labels: tuple[str, ...]
    score_column: int
    review: float
    decline: float
    fallback: Decision
    rules: tuple[Rule, ...]
    codes: tuple[str, ...]
    reasons: dict[str, str]


def load_policy(path: Path, *, feature_names: Sequence[str]) -> Policy:
    """
    Read and check a policy.yaml.

    Args:
        path: The file.
        feature_names: What rules may name besides amount, score and degraded bits.

    Raises:
        PolicyError: It cannot be read, or does not fit together; the message names
            the file and the key.
    """
    import yaml

    try:
        raw = msgspec.yaml.decode(path.read_bytes(), type=RawPolicy)
    except OSError as exc:
        raise PolicyError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, ValueError, yaml.YAMLError) as exc:
        raise PolicyError(path, " ".join(str(exc).split())) from exc
    return _Compiler(path, raw, feature_names).compile()


class _Compiler:
    def __init__(
        self, path: Path, raw: RawPolicy, feature_names: Sequence[str]
    ) -> None:
        self._path = path
        self._raw = raw
        self._features = list(feature_names)

    def compile(self) -> Policy:
        raw = self._raw
        if raw.version != POLICY_VERSION:
            self._refuse("version", f"{raw.version} is not {POLICY_VERSION}")
        if raw.score not in raw.labels:
            self._refuse("score", f"{raw.score!r} is none of {', '.join(raw.labels)}")
        review, decline = raw.thresholds.review, raw.thresholds.decline
        if not 0 <= review <= decline <= 1:
            self._refuse(
                "thresholds", f"0 <= review {review} <= decline {decline} <= 1 is false"
            )
        codes = self._codes()
        return Policy(
            labels=tuple(raw.labels),
            score_column=raw.labels.index(raw.score),
            review=review,
            decline=decline,
            fallback=_LEVELS[raw.fallback.model_output],
            rules=tuple(self._rule(rule, codes) for rule in raw.rules),
            codes=tuple(codes),
            reasons=_BUILT_IN | raw.reasons,
        )

    def _codes(self) -> list[str]:
        own = [MODEL_UNAVAILABLE, SCORE_DECLINE, SCORE_REVIEW, ESSENTIAL_MISSING]
        codes = list(dict.fromkeys([*own, *(rule.code for rule in self._raw.rules)]))
        if len(codes) > _MAX_CODES:
            self._refuse("rules", f"{len(codes)} codes, {_MAX_CODES} are allowed")
        for code in codes:
            if code not in self._raw.reasons | _BUILT_IN:
                self._refuse("reasons", f"no text for {code}")
            if REASON_SEPARATOR in code:
                self._refuse("reasons", f"{code} holds a {REASON_SEPARATOR}")
        for code in self._raw.reasons:
            if code not in codes:
                self._refuse("reasons", f"nothing gives the code {code}")
        return codes

    def _rule(self, rule: RawRule, codes: Sequence[str]) -> Rule:
        where = f"rules.{rule.name}"
        if [one.name for one in self._raw.rules].count(rule.name) > 1:
            self._refuse(where, "appears twice")
        if (rule.at_least is None) == (rule.at_most is None):
            self._refuse(where, "needs exactly one of at_least, at_most")
        if not rule.when:
            self._refuse(f"{where}.when", "is empty")
        return Rule(
            name=rule.name,
            conditions=tuple(
                condition
                for field, wanted in rule.when.items()
                for condition in self._conditions(f"{where}.when", field, wanted)
            ),
            at_least=_LEVELS[rule.at_least or "approve"],
            at_most=_LEVELS[rule.at_most or "decline"],
            code=codes.index(rule.code),
        )

    def _conditions(
        self, where: str, field: str, wanted: bool | Mapping[Operator, float]
    ) -> list[Condition]:
        if field in Degraded.__members__:
            if not isinstance(wanted, bool):
                self._refuse(where, f"{field} is a bit: compare it to true or false")
            return [Condition(field, -1, operator.eq, wanted)]
        if isinstance(wanted, bool) or not wanted:
            self._refuse(where, f"{field} is a number: write {{ge: …}} or the like")
        if field not in (AMOUNT, SCORE, *self._features):
            self._refuse(where, f"{field!r} is no field, feature or degraded bit")
        known = field in self._features and field != AMOUNT
        column = self._features.index(field) if known else -1
        return [
            Condition(field, column, _OPERATORS[name], float(value))
            for name, value in wanted.items()
        ]

    def _refuse(self, where: str, problem: str) -> NoReturn:
        raise PolicyError(self._path, problem, where=where)

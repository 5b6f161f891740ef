"""Compile a policy.yaml, and refuse an inconsistent one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from tollgate.policy.codes import name_codes, name_reasons
from tollgate.policy.conditions import SCORE, Names
from tollgate.policy.definition import OTHER, Levels, Policy, Rule, Thresholds
from tollgate.policy.document import (
    POLICY_VERSION,
    Document,
    RawThresholds,
    duration_s,
    read_document,
)
from tollgate.policy.effective import read_time_us
from tollgate.policy.lines import Place
from tollgate.policy.notice import read_notice, refuse_sensitive
from tollgate.policy.parts import LEVELS, read_lists, read_meanings, read_score
from tollgate.policy.reach import check_reach
from tollgate.policy.tables import ConditionTable, Criterion
from tollgate.schema import FieldForm

_MAX_RULES, _MAX_SEGMENTS = 64, 254  # bits, and a byte, of a decision's record


def load_policy(
    path: Path,
    *,
    feature_names: Sequence[str],
    fields: Sequence[FieldForm] = (),
    id_names: Sequence[str] | None = None,
    amount: bool = True,
) -> Policy:
    """
    Read, check and compile a policy.yaml.

    Args:
        path: The file.
        feature_names: Columns of `features`, in order.
        fields: Declared fields of the request; words of a category are checked where
            its vocabulary is given.
        id_names: Inputs that hold ids; None where they are not known: then the input of
            a list is not checked.
        amount: True if the product has money that a condition may name.

    Raises:
        PolicyError: It cannot be read, or is inconsistent; the message names the file,
            the line and the key.
    """
    document = read_document(path)
    names = Names(document, feature_names=feature_names, fields=fields, amount=amount)
    return _Compiler(document, names).compile(fields, id_names)


class _Compiler:
    def __init__(self, document: Document, names: Names) -> None:
        self._document = document
        self._raw = document.raw
        self._names = names

    def compile(
        self, fields: Sequence[FieldForm], id_names: Sequence[str] | None
    ) -> Policy:
        raw = self._raw
        if raw.version != POLICY_VERSION:
            self._refuse(("version",), f"{raw.version} is not {POLICY_VERSION}")
        score = read_score(self._document)
        thresholds = self._thresholds()
        codes = name_codes(self._document)
        meanings = read_meanings(self._document, codes)
        segments = [self._segment(at) for at in range(len(raw.segments))]
        rules = [self._criterion(at) for at in range(len(raw.rules))]
        check_reach(self._document, self._names, segments=segments, rules=rules)
        return Policy(
            product=raw.product,
            labels=tuple(raw.labels),
            score=score,
            sum_within=raw.fallback.sum_within,
            segments=(OTHER, *(one.name for one in raw.segments)),
            thresholds=thresholds,
            rules=tuple(self._rule(at, codes) for at in range(len(raw.rules))),
            meanings=meanings,
            lists=read_lists(self._document, id_names),
            codes=codes,
            reasons=name_reasons(self._document),
            contributions=self._contributions(),
            consent=self._consent(fields),
            idempotency_s=self._window(),
            tables=ConditionTable(segments, rules),
            levels=Levels(
                review=np.array([one.review for one in thresholds]),
                decline=np.array(
                    [
                        np.inf if one.decline is None else one.decline
                        for one in thresholds
                    ]
                ),
                fallback=np.array([one.fallback for one in thresholds], np.uint8),
            ),
            score_cuts=self._cuts(thresholds),
            notice=read_notice(self._document, self._names.features),
            sensitive=refuse_sensitive(
                self._document,
                [
                    *self._names.features,
                    *(one.name for one in fields),
                    *(id_names or ()),
                ],
            ),
        )

    def _thresholds(self) -> tuple[Thresholds, ...]:
        """Read the thresholds of rows in no segment, then those of each segment."""
        raw = self._raw
        fallback = raw.fallback.model_output
        found = [self._pair(raw.thresholds, fallback, ("thresholds",))]
        for at, one in enumerate(raw.segments):
            own = one.fallback.model_output if one.fallback else fallback
            place: Place = ("segments", at, "thresholds")
            found.append(self._pair(one.thresholds, own, place))
        return tuple(found)

    def _pair(self, raw: RawThresholds, fallback: str, place: Place) -> Thresholds:
        review, decline = raw.review, raw.decline
        if decline is None:
            if not 0 <= review <= 1:
                self._refuse(place, f"0 <= review {review} <= 1 is false")
        elif not 0 <= review <= decline <= 1:
            self._refuse(
                place, f"0 <= review {review} <= decline {decline} <= 1 is false"
            )
        return Thresholds(review, decline, LEVELS[fallback])

    def _segment(self, at: int) -> Criterion:
        raw = self._raw.segments
        if at >= _MAX_SEGMENTS:
            self._refuse(("segments", at), f"{_MAX_SEGMENTS} segments are allowed")
        self._once([one.name for one in raw], ("segments", at), at)
        if raw[at].name == OTHER:
            self._refuse(("segments", at), f"{OTHER} are the rows in no segment")
        place: Place = ("segments", at, "when")
        conditions = self._names.conditions(raw[at].when, place)
        for one in conditions:
            if one.variable.kind in ("score", "label"):
                name = one.variable.name
                problem = "chooses the thresholds, so it cannot look at the score"
                self._refuse((*place, name), problem)
        return Criterion(tuple(conditions))

    def _criterion(self, at: int) -> Criterion:
        """Read the conditions and the validity of a rule."""
        place: Place = ("rules", at)
        rule = self._raw.rules[at]
        if at >= _MAX_RULES:
            self._refuse(place, f"{_MAX_RULES} rules are allowed")
        self._once([one.name for one in self._raw.rules], place, at)
        since = self._time(rule.since, (*place, "from"))
        until = self._time(rule.until, (*place, "until"))
        if since is not None and until is not None and until <= since:
            problem = f"{rule.until} is not after {rule.since}: it is never in force"
            self._refuse((*place, "until"), problem)
        return Criterion(
            conditions=tuple(self._names.conditions(rule.when, (*place, "when"))),
            segments=self._named_segments(rule.segments, (*place, "segments")),
            from_us=since,
            until_us=until,
            stop=rule.stop,
        )

    def _rule(self, at: int, codes: Sequence[str]) -> Rule:
        """Read the effect of a rule."""
        rule, place = self._raw.rules[at], ("rules", at)
        if (rule.at_least is None) == (rule.at_most is None):
            self._refuse(place, "needs exactly one of at_least, at_most")
        if rule.at_least == "approve" or rule.at_most == "decline":
            self._refuse(place, "changes nothing: every decision is that already")
        return Rule(
            name=rule.name,
            owner=rule.owner,
            at_least=LEVELS[rule.at_least or "approve"],
            at_most=LEVELS[rule.at_most or "decline"],
            code=codes.index(rule.code),
            stop=rule.stop,
        )

    def _named_segments(
        self, named: list[str] | None, place: Place
    ) -> tuple[int, ...] | None:
        if named is None:
            return None
        known = [OTHER, *(one.name for one in self._raw.segments)]
        for name in named:
            if name not in known:
                self._refuse(place, f"{name!r} is none of {', '.join(known)}")
        if not named:
            self._refuse(place, "is empty")
        return tuple(sorted({known.index(name) for name in named}))

    def _time(self, text: str | None, place: Place) -> int | None:
        if text is None:
            return None
        found = read_time_us(text)
        if found is None:
            wanted = "2026-03-01 or 2026-03-01T06:00:00Z"
            self._refuse(place, f"{text!r} is no time such as {wanted}")
        return found

    def _contributions(self) -> dict[str, str]:
        for name in self._raw.contributions:
            if name not in self._names.features:
                self._refuse(("contributions", name), "is no feature")
        return self._raw.contributions

    def _consent(self, fields: Sequence[FieldForm]) -> str | None:
        if self._raw.journal is None:
            return None
        name = self._raw.journal.consent
        if name not in [one.name for one in fields]:
            self._refuse(("journal", "consent"), f"{name!r} is no declared field")
        return name

    def _window(self) -> int:
        text = self._raw.idempotency.window
        found = duration_s(text)
        if not found:
            problem = f"{text!r} is no time such as 10m"
            self._refuse(("idempotency", "window"), problem)
        return found

    def _cuts(self, thresholds: Sequence[Thresholds]) -> tuple[float, ...]:
        cuts = {one.review for one in thresholds}
        cuts |= {one.decline for one in thresholds if one.decline is not None}
        for rule in self._raw.rules:
            cuts.update(map(float, rule.when.get(SCORE, {}).values()))
        return tuple(sorted(cuts))

    def _once(self, names: Sequence[str], place: Place, at: int) -> None:
        if names[at] in names[:at]:
            self._refuse(place, "appears twice")

    def _refuse(self, place: Place, problem: str) -> NoReturn:
        self._document.refuse(place, problem)

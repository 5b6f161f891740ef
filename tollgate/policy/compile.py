"""Compile a policy.yaml, and refuse an inconsistent one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from tollgate.policy.conditions import (
    SCORE,
    Box,
    Condition,
    Names,
    Spans,
    common,
    meet,
    remove_all,
)
from tollgate.policy.decision_tables import ConditionTable, Criterion
from tollgate.policy.hysteresis import Hysteresis, code_names, read_hysteresis
from tollgate.policy.policy_definition import (
    ESSENTIAL_MISSING,
    MODEL_UNAVAILABLE,
    MOST_REASONS,
    OTHER,
    Levels,
    Meaning,
    Notice,
    Policy,
    PolicyList,
    Rule,
    Score,
    Thresholds,
)
from tollgate.policy.policy_document import (
    POLICY_VERSION,
    Document,
    Place,
    RawMeaning,
    RawRule,
    RawScore,
    RawThresholds,
    duration_s,
    read_document,
    rule_times,
)
from tollgate.policy.ranking_rules import RankingRules, read_ranking
from tollgate.schema import (
    REASON_SEPARATOR,
    Decision,
    Degraded,
    FieldForm,
    Outcomes,
)

# List the reason codes that a decision may have, in order, with their texts.

# The decision step gives this code with any policy, so a policy need not declare it:
# features.yaml declares the essential features, and an older policy stays valid when it
# does.
_BUILT_IN = {ESSENTIAL_MISSING: "Data this decision needs is missing or too old."}
_MAX_CODES = 63  # codes are bits of one integer


def own_codes(outcomes: Outcomes) -> tuple[str, ...]:
    """List the codes that a decision gives with any policy of these outcomes."""
    review, decline = outcomes.score_codes
    return MODEL_UNAVAILABLE, decline, review, ESSENTIAL_MISSING


def name_codes(document: Document) -> tuple[str, ...]:
    """
    List the codes of a decision: our own, those of degraded bits, those of rules.

    Raises:
        PolicyError: A code has no text, a text no code, or there are too many.
    """
    raw = document.raw
    places = {
        one.code: ("degraded", bit, "code")
        for bit, one in raw.degraded.items()
        if isinstance(one, RawMeaning)
    }
    declared = list(dict.fromkeys([*own_codes(document.outcomes), *places]))
    declared += [one.code for one in raw.rules if one.code not in declared]
    codes = list(dict.fromkeys(declared))
    if len(codes) > _MAX_CODES:
        document.refuse(("rules",), f"{len(codes)} codes, {_MAX_CODES} are allowed")
    own = [] if raw.hysteresis is None else code_names(raw.hysteresis)
    reported = dict.fromkeys([*codes, *own, *raw.contributions.values()])
    limits = [raw.thresholds, *(one.thresholds for one in raw.segments)]
    severest = document.outcomes.words[2]
    if all(one.get(severest) is None for one in limits):
        # It stays among the codes, but is never given.
        del reported[document.outcomes.score_codes[1]]
    for code in reported:
        if code not in raw.reasons | _BUILT_IN:
            document.refuse(("reasons",), f"no text for {code}")
        if REASON_SEPARATOR in code:
            document.refuse(("reasons", code), f"{code} holds a {REASON_SEPARATOR}")
    for code in raw.reasons:
        if code not in reported:
            document.refuse(("reasons", code), f"nothing gives the code {code}")
    return tuple(codes)


def name_reasons(document: Document) -> dict[str, str]:
    """Map each code to its text."""
    return _BUILT_IN | document.raw.reasons


# Read the independent parts of a policy: score, degraded bits, lists.

_MAX_LISTS = 32  # number of bits of list_hits
_MAX_DECIMALS = 9


def read_score(document: Document) -> Score:
    """
    Read how probabilities become a score.

    Raises:
        PolicyError: It names an unknown label, or has an invalid weight.
    """
    raw = document.raw
    for at, label in enumerate(raw.labels):
        if label in raw.labels[:at]:
            document.refuse(("labels", at), f"{label} stands there twice")
    meaning = raw.score if isinstance(raw.score, RawScore) else RawScore(of=raw.score)
    within = raw.fallback.sum_within
    if within is not None and not 0 < within <= 1:
        document.refuse(("fallback", "sum_within"), f"{within} is not within 0 … 1")
    given = (meaning.of is not None, meaning.value is not None, bool(meaning.weights))
    if sum(given) != 1:
        document.refuse(("score",), "needs exactly one of of, value, weights")
    if meaning.value is not None:
        _require_one_number(document)
    elif meaning.worse is not None:
        problem = "belongs to value: a higher probability is worse"
        document.refuse(("score", "worse"), problem)
    one = meaning.of if meaning.value is None else meaning.value
    weights = {one: 1.0} if one is not None else meaning.weights
    place: Place = ("score",) if one is not None else ("score", "weights")
    for label, weight in weights.items():
        if label not in raw.labels:
            document.refuse(place, f"{label!r} is none of {', '.join(raw.labels)}")
        if not 0 < weight <= 1:
            document.refuse((*place, label), f"{weight} is not within 0 … 1")
    decimals = meaning.decimals
    if decimals is not None and not 1 <= decimals <= _MAX_DECIMALS:
        problem = f"{decimals} is not within 1 … {_MAX_DECIMALS}"
        document.refuse(("score", "decimals"), problem)
    return Score(
        weights=tuple(
            (column, float(weights[label]))
            for column, label in enumerate(raw.labels)
            if label in weights
        ),
        plain=one is not None,
        decimals=decimals,
        number=meaning.value is not None,
        sign=-1.0 if meaning.worse == "lower" else 1.0,
    )


def _require_one_number(document: Document) -> None:
    """Refuse keys that belong to the probabilities of several labels."""
    labels = document.raw.labels
    if len(labels) != 1:
        document.refuse(("labels",), f"{len(labels)} labels; a number is one")
    if document.raw.fallback.sum_within is not None:
        problem = "belongs to probabilities: a number has no sum"
        document.refuse(("fallback", "sum_within"), problem)


def read_meanings(document: Document, codes: Sequence[str]) -> tuple[Meaning, ...]:
    """
    Read the effects of degraded bits on a decision; ESSENTIAL_MISSING always has one.

    Raises:
        PolicyError: A bit is unknown, or may not have that effect.
    """
    essential = Meaning(
        bit=int(Degraded.ESSENTIAL_MISSING),
        code=codes.index(ESSENTIAL_MISSING),
        at_least=Decision.REVIEW,
    )
    found = {ESSENTIAL_MISSING: essential}
    for name, meaning in document.raw.degraded.items():
        place: Place = ("degraded", name)
        if name not in Degraded.__members__:
            document.refuse(place, f"is none of {', '.join(Degraded.__members__)}")
        if name == Degraded.MODEL_OUTPUT.name:
            document.refuse(place, "is decided by fallback.model_output")
        if name == Degraded.HYSTERESIS_UNREAD.name:
            document.refuse(place, "is set after the policy, by hysteresis")
        if isinstance(meaning, RawMeaning):
            found[name] = _meaning(document, meaning, place, codes)
        essential_too = name == ESSENTIAL_MISSING
        if essential_too and (meaning == "none" or found[name].fallback is not None):
            _, middle, severest = document.outcomes.words
            document.refuse(place, f"is at_least {middle} or {severest}")
    return tuple(found.values())


def _meaning(
    document: Document, meaning: RawMeaning, place: Place, codes: Sequence[str]
) -> Meaning:
    if (meaning.at_least is None) == (meaning.fallback is None):
        document.refuse(place, "needs exactly one of at_least, fallback")
    at_least, fallback = Decision.APPROVE, None
    if meaning.at_least is not None:
        at_least = document.level(meaning.at_least, (*place, "at_least"))
        if at_least == Decision.APPROVE:
            document.refuse(place, "changes nothing: write none")
    if meaning.fallback is not None:
        fallback = document.level(meaning.fallback, (*place, "fallback"))
    return Meaning(
        bit=int(Degraded[str(place[-1])]),
        code=codes.index(meaning.code),
        at_least=at_least,
        fallback=fallback,
    )


def read_lists(
    document: Document, id_names: Sequence[str] | None
) -> tuple[PolicyList, ...]:
    """
    Read the lists.

    Raises:
        PolicyError: A list is of an unknown input, no rule uses it, or a rule uses it
            with the opposite meaning.
    """
    raw = document.raw
    for at, one in enumerate(raw.lists):
        place: Place = ("lists", at)
        if at >= _MAX_LISTS:
            document.refuse(place, f"{_MAX_LISTS} lists are allowed")
        if id_names is not None and one.of not in id_names:
            document.refuse(
                (*place, "of"), f"{one.of!r} is none of {', '.join(id_names)}"
            )
        conditions = [
            *(rule.when for rule in raw.rules),
            *(s.when for s in raw.segments),
            *(one.when or {} for one in (raw.ranking.rules if raw.ranking else [])),
        ]
        if not any(one.name in when for when in conditions):
            document.refuse(place, "is looked up, and no rule asks for it")
        for position, rule in enumerate(raw.rules):
            turned = _turned(rule, one.meaning, mildest=document.outcomes.words[0])
            if turned and rule.when.get(one.name) is True:
                document.refuse(
                    ("rules", position, "when", one.name),
                    f"{one.name} is a list to {one.meaning}: {turned} turns it around",
                )
    return tuple(PolicyList(one.name, one.of, one.meaning) for one in raw.lists)


def _turned(rule: RawRule, meaning: str, *, mildest: str) -> str:
    """Return the key of a rule that contradicts a list's meaning; empty for none."""
    level = rule.before_model
    if level is not None and (level == mildest) == (meaning == "deny"):
        return f"before_model: {level}"
    key, found = (
        ("at_most", rule.at_most) if meaning == "deny" else ("at_least", rule.at_least)
    )
    return key if found is not None else ""


# Check that each segment and rule can hold, and that no other one blocks it.

# Variables of boxes that no condition can name.
_SEGMENT, _EVENT_TIME = "segment ", "event time "
_EVER = 2**62


def check_reach(
    document: Document,
    names: Names,
    *,
    segments: Sequence[Criterion],
    rules: Sequence[Criterion],
) -> None:
    """
    Check that segments and rules can hold.

    Raises:
        PolicyError: Conditions contradict each other, two segments overlap, or earlier
            rules with `stop` leave no row to a rule.
    """
    _Reach(document, names, segments).check(rules)


class _Reach:
    def __init__(
        self, document: Document, names: Names, segments: Sequence[Criterion]
    ) -> None:
        self._document = document
        self._unscored = {Degraded.MODEL_OUTPUT.name} | {
            name
            for name, one in document.raw.degraded.items()
            if isinstance(one, RawMeaning) and one.fallback is not None
        }
        self._domains: dict[str, Spans] = names.domains | {
            _SEGMENT: ((0, len(segments)),),
            _EVENT_TIME: ((-_EVER, _EVER),),
        }
        self._segments = [
            self._box(one, ("segments", at, "when")) for at, one in enumerate(segments)
        ]
        self._refuse_overlaps()

    def check(self, rules: Sequence[Criterion]) -> None:
        """Check the rules in their order."""
        parts = self._parts()
        stopped: list[Box] = []
        stops: list[str] = []
        for at, criterion in enumerate(rules):
            place: Place = ("rules", at)
            box = self._box(criterion, (*place, "when"))
            boxes = [found for part in parts if (found := common(box, part))]
            if not boxes:
                problem = f"never holds in {', '.join(self._named(criterion))}"
                self._document.refuse((*place, "segments"), problem)
            if not remove_all(boxes, stopped, domains=self._domains):
                problem = f"is never reached: stopped by {' and '.join(stops)}"
                self._document.refuse(place, problem)
            if criterion.stop:
                stopped += boxes
                stops.append(self._document.raw.rules[at].name)

    def _parts(self) -> list[Box]:
        """Return all rows as disjoint boxes: of each segment, and of no segment."""
        other = remove_all([{}], self._segments, domains=self._domains)
        return [
            *({**box, _SEGMENT: ((0, 0),)} for box in other),
            *(
                {**box, _SEGMENT: ((at, at),)}
                for at, box in enumerate(self._segments, 1)
            ),
        ]

    def _refuse_overlaps(self) -> None:
        raw = self._document.raw.segments
        for at, box in enumerate(self._segments):
            for before in range(at):
                if common(box, self._segments[before]) is not None:
                    line = self._document.source.line(("segments", before))
                    problem = f"overlaps {raw[before].name} of line {line}"
                    self._document.refuse(("segments", at), problem)

    def _box(self, criterion: Criterion, place: Place) -> Box:
        """Build the box of a segment's or a rule's conditions; it must not be empty."""
        box: dict[str, Spans] = {}
        for one in criterion.conditions:
            name = one.variable.name
            box[name] = meet(box.get(name, one.variable.domain), one.spans)
            if not box[name]:
                self._document.refuse((*place, name), "can never hold")
        self._scored(criterion.conditions, place)
        if criterion.segments is not None:
            box[_SEGMENT] = tuple((one, one) for one in criterion.segments)
        since = -_EVER if criterion.from_us is None else criterion.from_us
        until = _EVER if criterion.until_us is None else criterion.until_us - 1
        box[_EVENT_TIME] = ((since, until),)
        return box

    def _scored(self, conditions: Sequence[Condition], place: Place) -> None:
        """Refuse conditions on a score together with bits that leave no score."""
        without = [
            one.variable.name
            for one in conditions
            if one.variable.name in self._unscored and one.wanted
        ]
        for one in conditions:
            if one.variable.kind in ("score", "label") and without:
                problem = f"can never hold: with {without[0]} no score is used"
                self._document.refuse((*place, one.variable.name), problem)

    def _named(self, criterion: Criterion) -> list[str]:
        names = ["other", *(one.name for one in self._document.raw.segments)]
        return [names[at] for at in criterion.segments or range(len(names))]


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


_WINDOW_S = 600  # that a decision is valid for its transaction id


class _Compiler:
    def __init__(self, document: Document, names: Names) -> None:
        self._document = document
        self._raw = document.raw
        self._names = names
        self._score = read_score(document)

    def compile(
        self, fields: Sequence[FieldForm], id_names: Sequence[str] | None
    ) -> Policy:
        raw = self._raw
        if raw.version != POLICY_VERSION:
            self._refuse(("version",), f"{raw.version} is not {POLICY_VERSION}")
        thresholds = self._thresholds()
        codes = name_codes(self._document)
        meanings = read_meanings(self._document, codes)
        segments = [self._segment(at) for at in range(len(raw.segments))]
        rules = [self._criterion(at) for at in range(len(raw.rules))]
        check_reach(self._document, self._names, segments=segments, rules=rules)
        return Policy(
            product=raw.product,
            labels=tuple(raw.labels),
            score=self._score,
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
                review=self._score.sign * np.array([one.review for one in thresholds]),
                decline=np.array(
                    [
                        np.inf
                        if one.decline is None
                        else self._score.sign * one.decline
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
            before_model=sum(one.before_model is not None for one in raw.rules),
            outcomes=self._document.outcomes,
            hysteresis=self._hysteresis(id_names),
            ranking=self._ranking(),
        )

    def _thresholds(self) -> tuple[Thresholds, ...]:
        """Read the thresholds of rows in no segment, then those of each segment."""
        raw = self._raw
        where: Place = ("fallback", "model_output")
        fallback = self._document.level(raw.fallback.model_output, where)
        found = [self._pair(raw.thresholds, fallback, ("thresholds",))]
        for at, one in enumerate(raw.segments):
            place: Place = ("segments", at)
            own = fallback
            if one.fallback:
                word = one.fallback.model_output
                own = self._document.level(word, (*place, *where))
            found.append(self._pair(one.thresholds, own, (*place, "thresholds")))
        return tuple(found)

    def _pair(self, raw: RawThresholds, fallback: Decision, place: Place) -> Thresholds:
        mildest, middle, severest = self._document.outcomes.words
        for word in raw:
            if self._document.level(word, (*place, word)) == Decision.APPROVE:
                problem = f"{mildest} is every score below {middle}"
                self._refuse((*place, word), problem)
        review, decline = raw.get(middle), raw.get(severest)
        if review is None:
            self._refuse(place, f"{middle} is missing")
        if self._score.number:
            self._require_order(review, decline, place)
        elif decline is None:
            if not 0 <= review <= 1:
                self._refuse(place, f"0 <= {middle} {review} <= 1 is false")
        elif not 0 <= review <= decline <= 1:
            self._refuse(
                place,
                f"0 <= {middle} {review} <= {severest} {decline} <= 1 is false",
            )
        return Thresholds(review, decline, fallback)

    def _require_order(
        self, review: float, decline: float | None, place: Place
    ) -> None:
        """Refuse thresholds of a number that are not finite, or not in order."""
        _, middle, severest = self._document.outcomes.words
        for word, value in ((middle, review), (severest, decline)):
            if value is not None and not np.isfinite(value):
                self._refuse((*place, word), f"{value} is no finite number")
        if decline is not None and self._score.sign * (decline - review) < 0:
            sign = "<=" if self._score.sign > 0 else ">="
            problem = f"{middle} {review} {sign} {severest} {decline} is false"
            self._refuse(place, problem)

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
        since, until = rule_times(self._document, rule.since, rule.until, place)
        conditions = tuple(self._names.conditions(rule.when, (*place, "when")))
        if rule.before_model is not None:
            self._require_before_model(at, conditions)
        return Criterion(
            conditions=conditions,
            segments=self._named_segments(rule.segments, (*place, "segments")),
            from_us=since,
            until_us=until,
            stop=rule.stop or rule.before_model is not None,
        )

    def _require_before_model(self, at: int, conditions: Sequence[Condition]) -> None:
        """Check that a rule with `before_model` needs nothing that the model gives."""
        place: Place = ("rules", at)
        rules, segments = self._raw.rules, self._raw.segments
        if rules[at].stop:
            problem = "has no effect: no rule follows one with before_model anyway"
            self._refuse((*place, "stop"), problem)
        if at and rules[at - 1].before_model is None:
            problem = f"must stand before {rules[at - 1].name}, which has none"
            self._refuse((*place, "before_model"), problem)
        output = Degraded.MODEL_OUTPUT.name
        for one in conditions:
            if one.variable.kind in ("score", "label") or one.variable.name == output:
                problem = "is not known before the model"
                self._refuse((*place, "when", one.variable.name), problem)
        looking = [one.name for one in segments if output in one.when]
        if rules[at].segments is not None and looking:
            problem = f"are not known before the model: {looking[0]} needs {output}"
            self._refuse((*place, "segments"), problem)

    def _rule(self, at: int, codes: Sequence[str]) -> Rule:
        """Read the effect of a rule."""
        rule, place = self._raw.rules[at], ("rules", at)
        effects = {
            "at_least": rule.at_least,
            "at_most": rule.at_most,
            "before_model": rule.before_model,
        }
        given = {
            key: self._document.level(word, (*place, key))
            for key, word in effects.items()
            if word is not None
        }
        if len(given) != 1:
            self._refuse(place, "needs exactly one of at_least, at_most, before_model")
        early = given.get("before_model")
        at_least = given.get("at_least", early or Decision.APPROVE)
        at_most = given.get("at_most", Decision.DECLINE if early is None else early)
        if at_least == Decision.APPROVE and at_most == Decision.DECLINE:
            self._refuse(place, "changes nothing: every decision is that already")
        return Rule(
            name=rule.name,
            owner=rule.owner,
            at_least=at_least,
            at_most=at_most,
            code=codes.index(rule.code),
            stop=rule.stop or rule.before_model is not None,
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
        """Read how long a decision stands; 0 where lists are ranked, s."""
        text = self._raw.idempotency.window
        if self._raw.ranking is not None:
            if text is not None:
                problem = "a list is not stored: it is ranked again; leave this out"
                self._refuse(("idempotency", "window"), problem)
            return 0
        if text is None:
            return _WINDOW_S
        found = duration_s(text)
        if not found:
            problem = f"{text!r} is no time such as 10m"
            self._refuse(("idempotency", "window"), problem)
        return found

    def _hysteresis(self, id_names: Sequence[str] | None) -> Hysteresis | None:
        raw = self._raw.hysteresis
        if raw is None:
            return None
        return read_hysteresis(self._document, raw, id_names=id_names)

    def _ranking(self) -> RankingRules | None:
        raw = self._raw.ranking
        if raw is None:
            return None
        return read_ranking(self._document, raw, names=self._names)

    def _cuts(self, thresholds: Sequence[Thresholds]) -> tuple[float, ...]:
        cuts = {one.review for one in thresholds}
        cuts |= {one.decline for one in thresholds if one.decline is not None}
        if self._score.sign < 0:
            # A score up to the threshold has the outcome: it changes just above.
            cuts = {_just_above(one) for one in cuts}
        for rule in self._raw.rules:
            cuts.update(map(float, rule.when.get(SCORE, {}).values()))
        return tuple(sorted(cuts))

    def _once(self, names: Sequence[str], place: Place, at: int) -> None:
        if names[at] in names[:at]:
            self._refuse(place, "appears twice")

    def _refuse(self, place: Place, problem: str) -> NoReturn:
        self._document.refuse(place, problem)


def _just_above(threshold: float) -> float:
    """Return the smallest float32 above a threshold."""
    near = np.float32(threshold)
    if float(near) <= threshold:
        near = np.nextafter(near, np.float32(np.inf))
    return float(near)


# Read the notice of an adverse action, and refuse sensitive inputs.
#
# A notice states the specific principal reasons (12 CFR 1002.9(b)(2)): the factors that
# were scored and counted most, with no principal one left out. A missed score or a
# missed standard of the lender is not such a reason.


def read_notice(document: Document, feature_names: Collection[str]) -> Notice | None:
    """
    Read the content of a notice.

    Raises:
        PolicyError: More than four reasons, an unknown code, a feature without a code.
    """
    raw = document.raw.notice
    if raw is None:
        return None
    if not 1 <= raw.most <= MOST_REASONS:
        problem = f"{raw.most} is not within 1 … {MOST_REASONS}"
        document.refuse(("notice", "most"), problem)
    mapped = document.raw.contributions
    for code in raw.never:
        if code not in document.raw.reasons:
            document.refuse(("notice", "never"), f"{code} is no code of this policy")
        if code in mapped.values():
            problem = (
                f"{code} is reported for a feature, which may be a principal reason"
            )
            document.refuse(("notice", "never"), problem)
    for name in sorted(feature_names):
        if name not in mapped:
            problem = f"{name} has no code: it could be a reason that is not reported"
            document.refuse(("contributions",), problem)
    return Notice(most=raw.most, never=frozenset(raw.never))


def refuse_sensitive(document: Document, inputs: Iterable[str]) -> tuple[str, ...]:
    """
    Return the attributes that must not influence decisions.

    Args:
        inputs: Names of features, fields and ids.

    Raises:
        PolicyError: One of these is an input.
    """
    known = {one.lower() for one in inputs}
    for at, name in enumerate(document.raw.sensitive):
        if name.lower() in known:
            place: Place = ("sensitive", at)
            document.refuse(place, f"{name} is an input of the product; none may be")
    return tuple(document.raw.sensitive)

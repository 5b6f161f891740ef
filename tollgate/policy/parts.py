"""Read the independent parts of a policy: score, degraded bits, lists."""

from __future__ import annotations

from collections.abc import Sequence

from tollgate.policy.definition import ESSENTIAL_MISSING, Meaning, PolicyList, Score
from tollgate.policy.document import Document, RawMeaning, RawScore
from tollgate.policy.lines import Place
from tollgate.schema import Decision, Degraded

LEVELS = {level.name.lower(): level for level in Decision}
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
    if (meaning.of is None) == (not meaning.weights):
        document.refuse(("score",), "needs exactly one of of, weights")
    weights = {meaning.of: 1.0} if meaning.of is not None else meaning.weights
    place: Place = ("score",) if meaning.of is not None else ("score", "weights")
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
        plain=meaning.of is not None,
        decimals=decimals,
    )


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
        if isinstance(meaning, RawMeaning):
            found[name] = _meaning(document, meaning, place, codes)
        essential_too = name == ESSENTIAL_MISSING
        if essential_too and (meaning == "none" or found[name].fallback is not None):
            document.refuse(place, "is at_least review or decline")
    return tuple(found.values())


def _meaning(
    document: Document, meaning: RawMeaning, place: Place, codes: Sequence[str]
) -> Meaning:
    if (meaning.at_least is None) == (meaning.fallback is None):
        document.refuse(place, "needs exactly one of at_least, fallback")
    if meaning.at_least == "approve":
        document.refuse(place, "changes nothing: write none")
    return Meaning(
        bit=int(Degraded[str(place[-1])]),
        code=codes.index(meaning.code),
        at_least=LEVELS[meaning.at_least or "approve"],
        fallback=None if meaning.fallback is None else LEVELS[meaning.fallback],
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
        ]
        if not any(one.name in when for when in conditions):
            document.refuse(place, "is looked up, and no rule asks for it")
        for position, rule in enumerate(raw.rules):
            turned = rule.at_most if one.meaning == "deny" else rule.at_least
            if turned is not None and rule.when.get(one.name) is True:
                document.refuse(
                    ("rules", position, "when", one.name),
                    f"{one.name} is a list to {one.meaning}: "
                    f"{'at_most' if one.meaning == 'deny' else 'at_least'} turns it "
                    "around",
                )
    return tuple(PolicyList(one.name, one.of, one.meaning) for one in raw.lists)

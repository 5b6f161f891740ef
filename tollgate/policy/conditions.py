"""
Read the conditions of segments and rules: the names they use, the values they match.

Every condition of a policy confines one variable to some spans of whole numbers: money
is cents, a category its hash, a truth value 0 or 1, and a float its position among all
floats. So the conditions of a rule or a segment form a box. Arithmetic of whole numbers
then decides whether two of them can hold at once, or one can hold at all: no float lies
between two neighbours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec
import numpy as np

from tollgate.policy.policy_document import Document, Place, RawScore
from tollgate.schema import (
    AMOUNT,
    MAX_CENTS,
    MISSING,
    Degraded,
    FieldForm,
    hash_words,
)

# Disjoint, ascending; ends included.
Spans = tuple[tuple[int, int], ...]
Box = Mapping[str, Spans]  # variable -> spans; other variables are unrestricted

_MOST_BOXES = 4096  # with more boxes, the rest counts as reachable


def meet(one: Spans, other: Spans) -> Spans:
    """Return the intersection of two sets of spans."""
    found = (
        (max(low, lowest), min(high, highest))
        for low, high in one
        for lowest, highest in other
    )
    return tuple(sorted((low, high) for low, high in found if low <= high))


def without(one: Spans, other: Spans) -> Spans:
    """Return the first set of spans without the second."""
    left = list(one)
    for lowest, highest in other:
        cut: list[tuple[int, int]] = []
        for low, high in left:
            if highest < low or high < lowest:
                cut.append((low, high))
                continue
            if low < lowest:
                cut.append((low, lowest - 1))
            if highest < high:
                cut.append((highest + 1, high))
        left = cut
    return tuple(left)


def common(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    found = dict(one)
    for name, spans in other.items():
        found[name] = meet(found[name], spans) if name in found else spans
    return found if all(found.values()) else None


def remove(box: Box, other: Box, *, domains: Mapping[str, Spans]) -> list[Box]:
    """Subtract a box from another; return the rest, as disjoint boxes."""
    if common(box, other) is None:
        return [box]
    left: list[Box] = []
    core = dict(box)
    for name, spans in other.items():
        mine = core.get(name, domains[name])
        if outside := without(mine, spans):
            left.append({**core, name: outside})
        core[name] = meet(mine, spans)
    return left


def remove_all(
    boxes: Iterable[Box], others: Iterable[Box], *, domains: Mapping[str, Spans]
) -> list[Box]:
    """Subtract boxes from boxes; above a maximum of pieces, leave the rest uncut."""
    left = list(boxes)
    for other in others:
        if len(left) > _MOST_BOXES:
            break
        left = [part for box in left for part in remove(box, other, domains=domains)]
    return left


def place32(value: float) -> int:
    """Number a float32 by its position among all of them."""
    bits = int(np.float32(value).view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF)


def place64(value: float) -> int:
    """Number a float64 by its position among all of them."""
    bits = int(np.float64(value).view(np.int64))
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF)


ABSENT: Spans = ((MISSING, MISSING),)
_INF = math.inf
_MOST = 2**63 - 1
_WHOLE = 2**53  # above it, a float64 cannot hold every whole number

Kind = Literal[
    "amount", "score", "label", "feature", "number", "category", "bit", "list"
]


class Variable(msgspec.Struct, frozen=True):
    """
    A variable that a condition may name.

    `column` is that of `features` or `probabilities`, or the number of a bit. The file
    compares with the whole number divided by `scale`; the whole number of an exact
    number is its position among all float64.
    """

    name: str
    kind: Kind
    column: int = -1
    scale: float = 1.0
    vocabulary: tuple[str, ...] = ()
    exact: bool = False
    unlimited: bool = False

    @property
    def domain(self) -> Spans:
        """Return all its possible values, as whole numbers."""
        if self.kind in ("bit", "list"):
            return ((0, 1),)
        if self.kind == "amount":
            return ((0, MAX_CENTS),)
        if self.unlimited:
            return (*ABSENT, (place64(-_INF), place64(_INF)))
        if self.kind in ("score", "label"):
            return (*ABSENT, (0, place64(1.0)))
        if self.kind == "feature":
            return (*ABSENT, (place32(-_INF), place32(_INF)))
        if self.exact:
            return (*ABSENT, (place64(-_INF), place64(_INF)))
        if self.kind == "number":
            return (*ABSENT, (-_WHOLE, _WHOLE))
        return ((MISSING, _MOST),)

    def spans(self, low: float, high: float) -> Spans:
        """Return its whole numbers between two numbers, both included."""
        if self.unlimited:
            first, last = place64(low), place64(high)
        elif self.kind in ("score", "label"):
            first, last = place64(max(low, 0.0)), place64(min(high, 1.0))
        elif self.kind == "feature":
            first, last = _least32(low), -_least32(-high)
        elif self.exact:
            first, last = place64(low), place64(high)
        else:
            lowest, highest = self.domain[-1]
            first = _least(low, self.scale, (lowest, highest))
            last = -_least(-high, self.scale, (-highest, -lowest))
        return ((first, last),) if first <= last else ()


def field_variable(field: FieldForm) -> Variable:
    """Build the variable of a declared field."""
    if field.type == "number" and field.decimals is None:
        return Variable(field.name, "number", exact=True)
    if field.type == "number":
        return Variable(field.name, "number", scale=10.0 ** (field.decimals or 0))
    return Variable(field.name, "category", vocabulary=field.vocabulary)


def _least(low: float, scale: float, within: tuple[int, int]) -> int:
    """Find the least whole number that is not below `low` when divided by `scale`."""
    lowest, highest = within
    if low <= lowest / scale:
        return lowest
    if low > highest / scale:
        return highest + 1
    found = math.floor(low * scale)
    while (found - 1) / scale >= low:
        found -= 1
    while found / scale < low:
        found += 1
    return found


def _least32(low: float) -> int:
    """Find the position of the least float32 that is not below a float64."""
    with np.errstate(over="ignore"):
        near = np.float32(low)
    if float(near) < low:
        near = np.nextafter(near, np.float32(_INF))
    return place32(float(near))


SCORE = "score"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")  # becomes part of a store key
_BOUNDS = ("ge", "gt", "le", "lt", "eq", "ne")


class Condition(msgspec.Struct, frozen=True):
    """
    One condition on one variable.

    Attributes:
        variable: Variable that the condition restricts.
        spans: Whole numbers of the variable that satisfy it.
        low, high: Of a number: ends, both included, compared in float64.
        unequal: Of a number: excluded values.
        absent: True if the value must be missing; then `hashes` is MISSING alone.
        hashes: Of a category: hashes of its words.
        inverted: Of a category: there must be a word, and none of these.
        wanted: Of a bit or a list: the required value.
    """

    variable: Variable
    spans: Spans
    low: float = -_INF
    high: float = _INF
    unequal: tuple[float, ...] = ()
    absent: bool = False
    hashes: tuple[int, ...] = ()
    inverted: bool = False
    wanted: bool = True


class Names:
    """
    Variables that the conditions of one policy may name.

    Raises:
        PolicyError: The name of a list is invalid, or also names something else.
    """

    def __init__(
        self,
        document: Document,
        *,
        feature_names: Sequence[str],
        fields: Sequence[FieldForm],
        amount: bool = True,
    ) -> None:
        self._document = document
        raw = document.raw
        found = {AMOUNT: Variable(AMOUNT, "amount", scale=100.0)} if amount else {}
        number = isinstance(raw.score, RawScore) and raw.score.value is not None
        found[SCORE] = Variable(SCORE, "score", unlimited=number)
        for bit in Degraded:
            if bit is Degraded.HYSTERESIS_UNREAD:  # is set after the policy
                continue
            name, place = bit.name or "", bit.value.bit_length() - 1
            found[name] = Variable(name, "bit", place)
        for one in fields:
            found.setdefault(one.name, field_variable(one))
        for column, name in enumerate(feature_names):
            found.setdefault(name, Variable(name, "feature", column))
        self.features = frozenset(feature_names)
        self._twice = set(raw.labels) & found.keys()
        for column, name in enumerate(raw.labels):
            label = Variable(name, "label", column, unlimited=number)
            found.setdefault(name, label)
        for position, item in enumerate(raw.lists):
            if not _NAME.match(item.name):
                self._refuse(("lists", position, "name"), f"{item.name!r} is no name")
            if item.name in found:
                self._refuse(("lists", position), "is the name of something else too")
            found[item.name] = Variable(item.name, "list", position)
        self._found = found

    @property
    def domains(self) -> dict[str, Spans]:
        """Return all possible values of each variable, as whole numbers."""
        return {name: one.domain for name, one in self._found.items()}

    def require_list_name(self, name: str, place: Place) -> None:
        """
        Check the name of a list that no condition names.

        Raises:
            PolicyError: It is invalid, or also names something else.
        """
        if not _NAME.match(name):
            self._refuse(place, f"{name!r} is no name")
        if name in self._found:
            self._refuse(place, f"{name} is the name of something else too")

    def conditions(self, when: Mapping[str, Any], place: Place) -> list[Condition]:
        """
        Read a `when`.

        Raises:
            PolicyError: It is empty, names an unknown variable, or compares one with a
                value of the wrong type or out of range.
        """
        if not when:
            self._refuse(place, "is empty")
        return [
            self._one(name, wanted, (*place, name)) for name, wanted in when.items()
        ]

    def _one(self, name: str, wanted: Any, place: Place) -> Condition:
        variable = self._found.get(name)
        if variable is None:
            self._refuse(
                place, f"{name!r} is no field, feature, label, list or degraded bit"
            )
        if name in self._twice:
            self._refuse(place, "is a label and something else: rename the label")
        if variable.kind in ("bit", "list"):
            if not isinstance(wanted, bool):
                self._refuse(
                    place, f"{name} is a {variable.kind}: compare it to true or false"
                )
            return Condition(variable, ((int(wanted),) * 2,), wanted=wanted)
        if isinstance(wanted, dict) and list(wanted) == ["missing"]:
            return self._missing(variable, wanted["missing"], place)
        if variable.kind == "category":
            return self._words(variable, wanted, place)
        return self._bounds(variable, wanted, place)

    def _missing(self, variable: Variable, wanted: object, place: Place) -> Condition:
        if variable.kind not in ("number", "category"):
            self._refuse(place, "only a declared field can be missing")
        if not isinstance(wanted, bool):
            self._refuse((*place, "missing"), "is true or false")
        if wanted:
            return Condition(variable, ABSENT, absent=True, hashes=(MISSING,))
        present = without(variable.domain, ABSENT)
        return Condition(variable, present, inverted=True)

    def _words(self, variable: Variable, wanted: Any, place: Place) -> Condition:
        inverted = isinstance(wanted, dict) and list(wanted) == ["not"]
        given = wanted["not"] if inverted else wanted
        words = [given] if isinstance(given, str) else given
        if not (isinstance(words, list) and words) or not all(
            isinstance(word, str) and word for word in words
        ):
            self._refuse(
                place, "is a category: write a word, [words], or {not: [words]}"
            )
        for word in words:
            if variable.vocabulary and word not in variable.vocabulary:
                known = ", ".join(variable.vocabulary)
                self._refuse(place, f"{word!r} is none of {known}")
        hashes = tuple(hash_words([word.encode() for word in words]).tolist())
        points: Spans = tuple((one, one) for one in sorted(set(hashes)))
        if inverted:
            present = without(variable.domain, ABSENT)
            points = without(present, points)
        return Condition(variable, points, hashes=hashes, inverted=inverted)

    def _bounds(self, variable: Variable, wanted: Any, place: Place) -> Condition:
        if not (isinstance(wanted, dict) and wanted):
            self._refuse(
                place, f"{variable.name} is a number: write {{ge: …}} or the like"
            )
        low, high, unequal = -_INF, _INF, []
        for name, value in self._comparisons(wanted, place):
            if variable.kind == "feature":
                value = self._float32(value, (*place, name))
            if name == "ne":
                unequal.append(value)
            if name in ("ge", "eq"):
                low = max(low, value)
            if name in ("le", "eq"):
                high = min(high, value)
            if name == "gt":
                low = max(low, math.nextafter(value, _INF))
            if name == "lt":
                high = min(high, math.nextafter(value, -_INF))
        spans = variable.spans(low, high)
        for value in unequal:
            spans = without(spans, variable.spans(value, value))
        return Condition(variable, spans, low=low, high=high, unequal=tuple(unequal))

    def _comparisons(
        self, wanted: Mapping[str, Any], place: Place
    ) -> Iterator[tuple[str, float]]:
        for name, value in wanted.items():
            where = (*place, name)
            if name not in _BOUNDS:
                self._refuse(where, f"is none of {', '.join(_BOUNDS)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                self._refuse(where, f"{value!r} is not a number")
            if not math.isfinite(value):
                self._refuse(where, f"{value} is not finite")
            yield name, float(value)

    def _float32(self, value: float, place: Place) -> float:
        """Round to float32 as features are, so that 0.9 equals a feature's 0.9."""
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value))
        if not math.isfinite(rounded):
            self._refuse(place, f"{value:g} is more than a feature can be")
        return rounded

    def _refuse(self, place: Place, problem: str) -> NoReturn:
        self._document.refuse(place, problem)

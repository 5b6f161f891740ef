"""
Read the conditions of segments and rules: the names they use, the values they match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import numpy as np

from tollgate.policy.lines import Place
from tollgate.policy.policy_document import Document
from tollgate.policy.spans import Spans, without
from tollgate.policy.variables import ABSENT, Variable, field_variable
from tollgate.schema import (
    AMOUNT,
    MISSING,
    Degraded,
    FieldForm,
    hash_words,
)

SCORE = "score"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")  # becomes part of a store key
_INF = math.inf
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

    Args:
        document: The policy.
        feature_names: Columns of `features`.
        fields: Declared fields of the request.
        amount: True if the product has money.

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
        found[SCORE] = Variable(SCORE, "score")
        for bit in Degraded:
            name, place = bit.name or "", bit.value.bit_length() - 1
            found[name] = Variable(name, "bit", place)
        for one in fields:
            found.setdefault(one.name, field_variable(one))
        for column, name in enumerate(feature_names):
            found.setdefault(name, Variable(name, "feature", column))
        self.features = frozenset(feature_names)
        self._twice = set(raw.labels) & found.keys()
        for column, name in enumerate(raw.labels):
            found.setdefault(name, Variable(name, "label", column))
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

"""Features of any product, computed from their definition, one purchase at a time."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tests.support.features.plain_sketch import approximate_count
from tests.support.features.random_specs import CATEGORIES, FIELDS, Event, in_us


class Loop:
    """The reference: every number from its definition, one purchase at a time."""

    def __init__(self, document: dict[str, Any], events: list[Event]) -> None:
        self.document = document
        self.events = sorted(events, key=lambda one: (one.time_us, *order(one.id)))
        self.decimals = {"amount": 2} | {
            one["name"]: one.get("decimals", 0) for one in document["fields"]
        }

    def vector(self, own: Event) -> list[float]:
        """Compute one purchase's vector."""
        made: dict[str, float | None] = {}
        vector = []
        for feature in self.document["features"]:
            value = self.value(feature, own, made)
            default = feature.get("default", 0.0)
            made[feature["name"]] = value
            number = default if value is None else value
            if bounds := feature.get("range"):
                number = min(max(number, bounds[0]), bounds[1])
                made[feature["name"]] = None if value is None else number
            vector.append(number)
        return vector

    def value(
        self, feature: dict[str, Any], own: Event, made: dict[str, float | None]
    ) -> float | None:
        """Compute one feature; None where its default has to stand in."""
        if "field" in feature:
            number = self.number(own, feature["field"])
            return None if number is None else self.unscaled(number, feature["field"])
        if "category" in feature:
            word = own.fields[feature["category"]]
            known = next(f for f in FIELDS if f["name"] == feature["category"])
            if not word:
                return -1.0
            words = known["vocabulary"]
            return float(words.index(word)) if word in words else -2.0
        for kind in ("ratio", "difference", "rate_of_change"):
            if kind in feature:
                return self.derived(kind, feature[kind], made)
        return self.windowed(feature, own)

    def derived(
        self, kind: str, names: list[str], made: dict[str, float | None]
    ) -> float | None:
        """Compute a feature of two others."""
        first, second = (made[name] for name in names)
        if first is None or second is None:
            return None
        if kind == "difference":
            return first - second
        if second == 0:
            return None
        if kind == "ratio":
            return first / second
        features = {one["name"]: one for one in self.document["features"]}
        short, long = (in_us(features[name]["window"]) for name in names)
        return first / second * (long / short)

    def windowed(self, feature: dict[str, Any], own: Event) -> float | None:
        """Compute a feature over a window."""
        name = feature.get("entity") or feature["time_since_last"]
        entity = self.document["entities"][name]
        delay_us, width_us = in_us(entity["delay"]), in_us(feature["window"])
        end_us = own.time_us - delay_us
        inside = [
            one
            for one in self.events
            if one.owners[entity["key"]] == own.owners[entity["key"]]
            and end_us - width_us < one.time_us <= end_us
            and (delay_us or self.upto(one, own))
        ]
        if "time_since_last" in feature:
            earlier = [one.time_us for one in inside if one is not own]
            return (own.time_us - earlier[-1]) / 1e6 if earlier else None
        kind, of = feature["aggregate"], feature.get("of", "amount")
        frauds = [one for one in inside if one.fraud and one.known_us <= own.time_us]
        if kind == "count":
            return float(len(inside))
        if kind == "flagged":
            return float(len(frauds))
        if kind == "share":
            return len(frauds) / len(inside) if inside else 0.0
        if kind in ("last", "change"):
            inside = [one for one in inside if one is not own]
            values = [self.number(one, of) for one in inside]
            known = [one for one in values if one is not None]
            nth = feature.get("nth") or (1 if kind == "last" else 2)
            if len(known) < nth:
                return None
            if kind == "last":
                return self.unscaled(known[-nth], of)
            return self.unscaled(known[-1] - known[-nth], of)
        if kind == "sessions":
            times_us, gap_us = [one.time_us for one in inside], in_us(feature["gap"])
            pairs = itertools.pairwise(times_us)
            return float(bool(inside) + sum(b - a > gap_us for a, b in pairs))
        if kind in ("std", "slope", "ewm"):
            known = [one for one in inside if self.number(one, of) is not None]
            numbers = [int(self.number(one, of)) for one in known]
            unit = 10 ** self.decimals[of]
            if kind == "std":
                return std(numbers, unit)
            if kind == "ewm":
                times_us = [one.time_us for one in known]
                return ewm(times_us, numbers, unit, in_us(feature["half_life"]))
            return slope([one.time_us for one in known], numbers, unit)
        values = [self.number(one, of) for one in inside]
        return self.aggregate(kind, of, [one for one in values if one is not None])

    def aggregate(self, kind: str, of: str, values: list[Any]) -> float | None:
        """Compute an aggregate of the values that are there."""
        if kind == "distinct":
            return float(len(set(values)))
        if kind == "approx_distinct":
            return approximate_count(set(values))
        if kind == "sum":
            return self.unscaled(sum(values), of)
        if kind == "mean":
            unit = 10 ** self.decimals[of]
            return sum(values) / (len(values) * unit) if values else 0.0
        if not values:
            return None
        return self.unscaled({"min": min, "max": max}[kind](values), of)

    def number(self, one: Event, of: str) -> Any:
        """Take what a purchase says of something; None if it says nothing."""
        if of == "amount":
            return one.cents
        if of in one.owners:
            return one.owners[of]
        value = one.fields[of]
        if of in CATEGORIES or value is None:
            return value
        if self.decimals[of] == "exact":
            return value
        return round(value * 10.0 ** self.decimals[of])

    def unscaled(self, number: int, of: str) -> float:
        """Turn a whole number of the last decimal into what it stands for."""
        if self.decimals[of] == "exact":
            return number
        return number / 10 ** self.decimals[of]

    def upto(self, one: Event, own: Event) -> bool:
        """Tell whether an event of the row's own instant is not after the row."""
        return one.time_us < own.time_us or order(one.id) <= order(own.id)


def std(values: list[int], unit: int) -> float | None:
    """Compute the population standard deviation from its definition."""
    count = len(values)
    if count < 2:
        return None
    mean = Fraction(sum(values), count)
    squares = sum(((one - mean) ** 2 for one in values), Fraction(0)) * count
    assert squares.denominator == 1
    return math.sqrt(float(squares)) / (count * unit)


def slope(times_us: list[int], values: list[int], unit: int) -> float | None:
    """Compute the slope of values over hours by least squares from its definition."""
    count = len(values)
    if len(set(times_us)) < 2:
        return None
    middle, mean = Fraction(sum(times_us), count), Fraction(sum(values), count)
    pairs = list(zip(times_us, values, strict=True))
    products = sum(((t - middle) * (x - mean) for t, x in pairs), Fraction(0))
    squares = sum(((t - middle) ** 2 for t in times_us), Fraction(0))
    return float(products * count) / float(squares * count) * (3_600_000_000 / unit)


def ewm(
    times_us: list[int], values: list[int], unit: int, half_life_us: int
) -> float | None:
    """Compute the mean with integer weights that halve with age."""
    if not values:
        return None
    ages = [Decimal(times_us[-1] - one) / half_life_us for one in times_us]
    weights = [round(2**30 * Decimal(2) ** -age) for age in ages]
    total = sum(w * x for w, x in zip(weights, values, strict=True))
    return float(total) / (sum(weights) * unit)


def order(transaction_id: str) -> tuple[int, bytes]:
    """Sort ids as the contract does."""
    return len(transaction_id), transaction_id.encode()

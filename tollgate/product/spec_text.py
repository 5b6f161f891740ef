"""Write the first features.yaml of a product."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tollgate.features.describe import decimals_text
from tollgate.features.wellformed import largest_number
from tollgate.product.plan import Field, Plan
from tollgate.templating import WIDTH, render, yaml_list

_WINDOWS = ("1d", "7d", "30d")
_LONGEST_S = 30 * 86_400.0
# A value this many times beyond all that were seen counts as a mistake.
_BEYOND = 10


def spec_text(
    plan: Plan,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
    usual_amount: float = 0.0,
) -> str:
    """
    Write features.yaml.

    Args:
        plan: The product.
        fields: Its fields in the order of the vector.
        missing: Substitute for a missing value, by field; NaN leaves it to the model.
        usual_amount: Default of a mean of amounts without history.
    """
    choices = plan.choices
    return render(
        "tollgate/product/templates/features.yaml.j2",
        {
            "product": choices.product,
            "table": choices.table.name,
            "amount": choices.amount,
            "time": choices.time,
            "at_night": plan.at_night,
            "aliases": plan.aliases,
            "entities": plan.entities,
            "fields": [_field(one, default=missing[one.name]) for one in fields],
            "windows": window_features(plan, usual_amount=usual_amount),
        },
    )


def _field(field: Field, *, default: float) -> dict[str, object]:
    """Return the values that the template needs of a field."""
    column = field.column
    values: dict[str, object] = {
        "name": field.name,
        "type": column.kind,
        "missing": column.missing,
    }
    if column.kind == "category":
        line = f"  - {{name: {field.name}, type: category, vocabulary: "
        line += yaml_list(column.words, indent=6) + "}"
        fits = len(line) <= WIDTH and "\n" not in line
        return {
            **values,
            "words": column.words,
            "on_one_line": fits,
            "left_to_model": math.isnan(default),
        }
    decimals = f", decimals: {decimals_text(column.decimals)}"
    low, high = bounds(column.low, column.high, decimals=column.decimals)
    return {
        **values,
        "decimals": decimals if column.decimals != 0 else "",
        "low": low,
        "high": high,
        "seen_low": column.low,
        "seen_high": column.high,
        "default": default,
    }


def bounds(low: float, high: float, *, decimals: int | None) -> tuple[float, float]:
    """
    Return the range of valid numbers: up to ten times those that were seen.

    A number that was never below 0 must not be; a row with a number out of range is
    bad.
    """
    most = largest_number(decimals)
    least = 0.1**decimals if decimals is not None else float(low == high == 0)
    largest = max(abs(low), abs(high), least)
    wide = 10.0 ** math.ceil(math.log10(largest * _BEYOND) - 1e-9)
    wide = min(wide, most)
    return (0.0 if low >= 0 else -wide), (0.0 if high <= 0 else wide)


def window_features(
    plan: Plan, *, usual_amount: float = 0.0
) -> list[tuple[str, str, float]]:
    """
    List the features over windows: name, the keys that define it, and its default.

    The default is the value of an entity without any history: counts and sums are 0,
    and the last event is longer ago than the longest window. The mean of no amounts is
    undefined, and 0 would be unusual, so its default is the usual amount.
    """
    taken = {one.name for one in plan.fields}
    aggregates = {"count": 0.0}
    if plan.choices.amount:
        aggregates |= {"sum": 0.0, "mean": usual_amount}
    found = []
    for entity in plan.entities:
        found += [
            (
                f"{entity.name}_{aggregate}_{window}",
                f"entity: {entity.name}, aggregate: {aggregate}, window: {window}",
                default,
            )
            for aggregate, default in aggregates.items()
            for window in _WINDOWS
        ]
        since = f"time_since_last: {entity.name}, window: {_WINDOWS[-1]}"
        found.append((f"{entity.name}_since_last", since, _LONGEST_S))
    return [
        (name if name not in taken else f"{name}_w", keys, default)
        for name, keys, default in found
    ]

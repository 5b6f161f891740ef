"""Write the first features.yaml of a product."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tollgate.features.describe import decimals_text
from tollgate.features.wellformed import largest_number
from tollgate.product.plan import Field, Plan, Watched
from tollgate.product.yaml_text import WIDTH, flow_list, number, scalar

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
    asked = plan.asked
    parts = [
        f"# What the model of `{asked.product}` sees: the same definition makes the "
        "numbers of\n# training and those of serving. First written from "
        f"{asked.table.name}; versions are\n# immutable, so edit a copy of this folder "
        "as version 2. All keys: docs/features.md.\n"
        f"version: 1\nproduct: {scalar(asked.product)}\n"
    ]
    if asked.amount is None:
        parts.append(
            "amount: false       # no money in it, and no amount in requests\n"
        )
    parts.append(_aliases(plan))
    parts.append(_entities(plan.entities))
    if fields:
        lines = "".join(_field(one) for one in fields)
        parts.append(
            "# What a request brings. Send all of them; NaN or an empty text says: "
            f"none.\nfields:\n{lines}"
        )
    parts.append(
        _features(plan, fields=fields, missing=missing, usual_amount=usual_amount)
    )
    return "\n".join(part for part in parts if part)


def _aliases(plan: Plan) -> str:
    """Write the table's names for our columns."""
    lines = [f"  {name}: [{scalar(one)}]\n" for name, one in plan.aliases.items()]
    if not lines:
        return ""
    return f"# What {plan.asked.table.name} calls our columns.\naliases:\n" + "".join(
        lines
    )


def _entities(entities: tuple[Watched, ...]) -> str:
    if not entities:
        return ""
    lines = "".join(f"  {one.name}: {{key: {one.key}}}\n" for one in entities)
    return (
        "# What windows are kept for; every event is kept until the longest one ends.\n"
        f"lateness: 1d        # how late an event may come and still count\n"
        f"entities:\n{lines}"
    )


def _field(field: Field) -> str:
    one = field.column
    head = f"  - {{name: {field.name}, type: {one.kind}"
    if one.kind == "category":
        rows = f"  # {one.missing:,} rows have none\n" if one.missing else "\n"
        words = flow_list(one.words, indent=6)
        short = f"{head}, vocabulary: {words}}}"
        if len(short) <= WIDTH and "\n" not in short:
            return short + rows
        head = f"  - name: {field.name}\n    type: category\n    vocabulary:{rows}"
        return f"{head}      {words}\n"
    decimals = f", decimals: {decimals_text(one.decimals)}" if one.decimals != 0 else ""
    low, high = bounds(one.low, one.high, decimals=one.decimals)
    seen = f"seen {number(one.low)} … {number(one.high)}"
    if one.missing:
        seen += f"; {one.missing:,} rows have none"
    return f"{head}{decimals}, range: [{number(low)}, {number(high)}]}}  # {seen}\n"


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
    if plan.asked.amount:
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


def _features(
    plan: Plan,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
    usual_amount: float,
) -> str:
    lines = []
    if plan.asked.amount:
        lines.append("{name: amount, field: amount}")
    if plan.asked.time:
        lines.append("{name: at_weekend, calendar: weekend}")
        if plan.at_night:
            lines.append("{name: at_night, calendar: night}")
    for one in fields:
        if one.column.kind == "category":
            open_ = ", default: .nan" if math.isnan(missing[one.name]) else ""
            lines.append(f"{{name: {one.name}, category: {one.name}{open_}}}")
            continue
        blank = missing[one.name]
        default = ".nan" if math.isnan(blank) else number(blank)
        lines.append(f"{{name: {one.name}, field: {one.name}, default: {default}}}")
    for name, keys, usual in window_features(plan, usual_amount=usual_amount):
        lines.append(f"{{name: {name}, {keys}, default: {number(usual)}}}")
    told = (
        "# The vector, in its order. `default` is what the model sees where there is "
        "none;\n# .nan leaves that to the model. A category is the place of its word, "
        "from 0. A window\n# that cannot be read counts as that of an id without "
        "history.\nfeatures:\n"
    )
    return told + "".join(f"  - {line}\n" for line in lines)

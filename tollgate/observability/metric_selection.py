"""Restrict queries to one installation, where one Prometheus scrapes several."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tollgate.errors import ArgumentError
from tollgate.metrics import metrics

# Label of series that Prometheus scrapes with the configuration in docs/metrics.md.
DEFAULT: Mapping[str, str] = {"job": "tollgate"}

# Text in quotes has no series; a name in front of { has matchers already.
_SERIES = re.compile(r'"[^"]*"|\b((?:tollgate[_:]|nv_)[\w:]+)(\{)?')
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def matchers(select: Mapping[str, str]) -> str:
    """Format labels and values as PromQL matchers, in the order of the labels."""
    return ",".join(f'{name}="{value}"' for name, value in sorted(select.items()))


def restrict(expr: str, of: str) -> str:
    """
    Restrict a query to the series of one installation.

    Args:
        expr: PromQL, of series whose names begin with tollgate_, tollgate: or nv_.
        of: Matchers; empty for all installations together.
    """
    if not of:
        return expr

    def with_matchers(found: re.Match[str]) -> str:
        name, opened = found.groups()
        if name is None:
            return found[0]
        return f"{name}{{{of}," if opened else f"{name}{{{of}}}"

    return _SERIES.sub(with_matchers, expr)


def read_select(given: list[str]) -> dict[str, str]:
    """
    Read LABEL=VALUE arguments.

    Raises:
        InputError: One has another form, its value would end a matcher, or a series
            uses that label for something else.
    """
    taken = {label for one in metrics() for label in one.row.labels}
    select = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not _LABEL.fullmatch(name) or not value:
            raise ArgumentError("select", f"{one!r} is not LABEL=VALUE")
        if not value.isprintable() or set(value) & set("\"'\\{}"):
            raise ArgumentError(
                "select", f"{one!r}: the value has a quote or a bracket"
            )
        if name in taken | {"le", "severity"}:
            raise ArgumentError("select", f"{one!r}: {name} is a label of our own")
        select[name] = value
    return select

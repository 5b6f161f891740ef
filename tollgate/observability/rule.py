"""A rule of Prometheus, as far as we use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Severity = Literal["page", "ticket"]


class Record(msgspec.Struct, frozen=True):
    """A series that is worked out and kept."""

    name: str
    expr: str
    labels: Mapping[str, str]


class Alert(msgspec.Struct, frozen=True):
    """
    Something that a person must hear of.

    Attributes:
        name: What it is called; its runbook is docs/runbooks/NAME.md.
        expr: When it is so.
        summary: One sentence.
        severity: page: now; ticket: within the day.
        product: Whose it is; empty when the series tell.
        wait: How long it must be so.
    """

    name: str
    expr: str
    summary: str
    severity: Severity
    product: str = ""
    wait: str = "5m"

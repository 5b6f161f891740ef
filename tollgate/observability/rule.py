"""Describe Prometheus rules, with the fields that we use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Severity = Literal["page", "ticket"]


class Record(msgspec.Struct, frozen=True):
    """A series that Prometheus computes and stores."""

    name: str
    expr: str
    labels: Mapping[str, str]


class Alert(msgspec.Struct, frozen=True):
    """
    An alert for a person.

    Attributes:
        name: Its name; its runbook is docs/runbooks/NAME.md.
        expr: PromQL condition of the alert.
        summary: One sentence.
        severity: page: now; ticket: within the day.
        product: Product that it is about; empty if the series have the label.
        wait: Time that the condition must hold.
    """

    name: str
    expr: str
    summary: str
    severity: Severity
    product: str = ""
    wait: str = "5m"

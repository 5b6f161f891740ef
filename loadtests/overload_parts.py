"""What is asked of a server in an overload test, and how fast."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtests.overload_table import WAYS, Flow

CALLERS = ("shop", "bank")
PARTS = (*WAYS, "bulk", "callers")


class Part(msgspec.Struct, frozen=True):
    """
    Streams of requests that come at the same time.

    Attributes:
        name: Of the line in the table.
        gated: Whether they go through the gateway.
        flows: The streams.
    """

    name: str
    gated: bool
    flows: tuple[Flow, ...]


def parts_of(
    wanted: Sequence[str], *, rates: Sequence[float], rows: int, bulk_rows: int
) -> list[Part]:
    """
    List what is measured.

    Args:
        wanted: Of PARTS.
        rates: Requests/s; ascending, the first is one at ease, the last one twice what
            can be decided.
        rows: In each request but those of bulk.
        bulk_rows: In each of these.
    """
    found = []
    for way in WAYS:
        if way in wanted:
            found += [
                Part(f"{way} {rate:,.0f}/s", way == "gate", (Flow("shop", rate, rows),))
                for rate in rates
            ]
    calm, most = rates[0], rates[-1]
    payments = Flow("shop", calm / 2, rows)
    blast = Flow("bank", most / 4, bulk_rows, bulk=True)
    if "bulk" in wanted:
        found += [
            Part("payments alone", True, (payments,)),
            Part("payments beside bulk", True, (payments, blast)),
        ]
    modest = Flow("bank", calm / 5, rows)
    if "callers" in wanted:
        found += [
            Part("modest caller alone", True, (modest,)),
            Part("beside a greedy one", True, (modest, Flow("shop", most, rows))),
        ]
    return found

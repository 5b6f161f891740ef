"""The streams of requests of an overload test, and their rates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtests.overload_table import PATHS, Flow

CALLERS = ("shop", "bank")
PARTS = (*PATHS, "bulk", "callers")


class Part(msgspec.Struct, frozen=True):
    """
    Streams of requests that are sent at the same time.

    Attributes:
        name: Name of the line in the table.
        gated: True if they go through the gateway.
        flows: The streams.
    """

    name: str
    gated: bool
    flows: tuple[Flow, ...]


def parts_of(
    wanted: Sequence[str], *, rates: Sequence[float], rows: int, bulk_rows: int
) -> list[Part]:
    """
    List the parts to measure.

    Args:
        wanted: Names of parts, of PARTS.
        rates: Requests/s, ascending: the first is a light load, the last is twice the
            server's capacity.
        rows: Rows in each request, except bulk requests.
        bulk_rows: Rows in each bulk request.
    """
    found = []
    for path in PATHS:
        if path in wanted:
            found += [
                Part(
                    f"{path} {rate:,.0f}/s", path == "gate", (Flow("shop", rate, rows),)
                )
                for rate in rates
            ]
    calm, most = rates[0], rates[-1]
    payments = Flow("shop", calm / 2, rows)
    blast = Flow("bank", most / 4, bulk_rows, bulk=True)
    if "bulk" in wanted:
        found += [
            Part("payments alone", True, (payments,)),
            Part("payments with bulk", True, (payments, blast)),
        ]
    modest = Flow("bank", calm / 5, rows)
    if "callers" in wanted:
        found += [
            Part("modest caller alone", True, (modest,)),
            Part(
                "modest caller with a greedy one",
                True,
                (modest, Flow("shop", most, rows)),
            ),
        ]
    return found

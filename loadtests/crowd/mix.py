"""The request mix of the users: share of each product, and rows per request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tollgate.errors import InputError
from tollgate.schema import MAX_BATCH_ROWS


class Part(msgspec.Struct, frozen=True):
    """
    One kind of request.

    Attributes:
        product: Name of the ensemble.
        rows: Rows in each request; 0 for as many as the scenario has.
        share: Share of all requests, 0 to 1.
    """

    product: str
    rows: int
    share: float


def read_mix(text: str, *, products: Sequence[str]) -> tuple[Part, ...]:
    """
    Parse a request mix.

    Args:
        text: PRODUCT[:ROWS][=WEIGHT], repeated after each comma; weight 1 by default.
            Empty for fraud alone, or else the first product.
        products: Products of the server.

    Raises:
        InputError: The text is not a mix.
    """
    usual = "fraud" if "fraud" in products else products[0]
    parts = [_part(one, products) for one in (text or usual).split(",")]
    total = sum(part.share for part in parts)
    return tuple(
        msgspec.structs.replace(part, share=part.share / total) for part in parts
    )


def _part(text: str, products: Sequence[str]) -> Part:
    kind, _, weight = text.strip().partition("=")
    product, colon, rows = kind.partition(":")
    if product not in products:
        served = ", ".join(products)
        raise InputError("--mix", f"{product!r} is none of those served: {served}")
    if colon and not (rows.isdecimal() and 1 <= int(rows) <= MAX_BATCH_ROWS):
        raise InputError("--mix", f"{rows!r} rows are not 1 to {MAX_BATCH_ROWS}")
    try:
        share = float(weight or 1)
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):
        raise InputError("--mix", f"{weight!r} is no weight above 0")
    return Part(product, int(rows or 0), share)

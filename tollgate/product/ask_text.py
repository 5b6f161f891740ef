"""Write a working Python example that calls a product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tollgate.templating import render

if TYPE_CHECKING:
    import polars as pl

ASK_FILE = "ask.py"


def ask_text(
    frame: pl.DataFrame,
    *,
    row: int,
    product: str,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> str:
    """
    Write Python that sends one row and prints its decision.

    Args:
        frame: Rows under the product's names.
        row: Position of the row to send.
        product: Name of the product.
        inputs: Required inputs of each request: name -> type on the wire.
        fields: Optional inputs, likewise.
    """
    return render(
        "tollgate/product/templates/ask.py.j2",
        {
            "product": product,
            "script": ASK_FILE,
            "inputs": inputs,
            "fields": fields,
            "row": frame.row(row, named=True),
        },
    )

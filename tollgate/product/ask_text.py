"""Write a working Python example that calls a product."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tollgate.schema import EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl

ASK_FILE = "ask.py"
_URL = "127.0.0.1:8001"


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
    values = [
        f'    "{TRANSACTION_ID}": [f"example-{{time.time_ns()}}"],  # never twice'
    ]
    for name in inputs:
        if name == EVENT_TIME:
            values.append(f'    "{name}": [int(time.time() * 1e6)],')
        elif name != TRANSACTION_ID:
            values.append(f'    "{name}": [{_literal(frame[name][row])}],')
    for name, kind in fields.items():
        found = frame[name][row]
        missing = 'float("nan")' if kind == "FP64" else '""'
        values.append(
            f'    "{name}": [{missing if found is None else _literal(found)}],'
        )
    asked = "\n".join(values)
    return f'''\
"""
Ask for a decision of `{product}`; up to 32 rows at once, a list a column.

    python {ASK_FILE} [HOST:PORT]
"""

import sys
import time

from clients.client import Client

INPUTS = {_dict(inputs)}
FIELDS = {_dict(fields)}
ROWS = {{
{asked}
}}

URL = sys.argv[1] if len(sys.argv) > 1 else "{_URL}"

with Client(URL, product="{product}", inputs=INPUTS, fields=FIELDS) as client:
    answer = client.decide(ROWS)
print(answer.decision[0], f"{{answer.score[0]:.4f}}", *answer.reason_codes[0])
'''


def _literal(value: object) -> str:
    """Format a number or a text as Python source."""
    if not isinstance(value, str):
        return repr(value)
    return json.dumps(value, ensure_ascii=not value.isprintable())


def _dict(pairs: Mapping[str, str]) -> str:
    lines = "".join(f'    "{name}": "{kind}",\n' for name, kind in pairs.items())
    return f"{{\n{lines}}}" if lines else "{}"

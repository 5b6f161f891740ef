"""Write tens of thousands of JSON bodies of equal length, as vary.c needs them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tollgate.load.traffic import fixed_width
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

_WHOLE_DIGITS, _TIME_DIGITS = 8, 16

Bytes2d = npt.NDArray[np.uint8]


def json_bodies(
    columns: Mapping[str, npt.NDArray[np.generic]], *, rows: int
) -> Bytes2d:
    """
    Write purchases as JSON: one object, or an array of several.

    Args:
        columns: Columns of the fraud product, B x rows values each; ids as "S" that
            fill their width.
        rows: Purchases per body.

    Returns:
        uint8 [B, L]; blanks before the numbers give all bodies the same length.
    """
    count = len(columns[AMOUNT])
    parts: list[Bytes2d] = []
    for name in (TRANSACTION_ID, "customer_id", "terminal_id"):
        parts += [_text(f'"{name}": "', count), _bytes(columns[name])]
        parts.append(_text('", ', count))
    cents = np.rint(columns[AMOUNT].astype(np.float64) * 100).astype(np.int64)
    parts += [_text(f'"{AMOUNT}": ', count), _amounts(cents)]
    times = fixed_width(columns[EVENT_TIME].astype(np.int64), digits=_TIME_DIGITS)
    parts += [_text(f', "{EVENT_TIME}": ', count), _bytes(times)]
    one = np.hstack([_text("{", count), *parts, _text("}", count)])
    if rows == 1:
        return np.ascontiguousarray(one)
    separated = np.hstack([one, _text(",", count)]).reshape(count // rows, -1)
    separated[:, -1] = ord("]")
    return np.hstack([_text("[", len(separated)), separated])


def _amounts(cents: npt.NDArray[np.int64]) -> Bytes2d:
    """Format cents as amounts, with blanks in place of leading zeros."""
    whole = _bytes(fixed_width(cents // 100, digits=_WHOLE_DIGITS)).copy()
    leading = np.logical_and.accumulate(whole[:, :-1] == ord("0"), axis=1)
    whole[:, :-1][leading] = ord(" ")
    part = _bytes(fixed_width(cents % 100, digits=2))
    return np.hstack([whole, _text(".", len(cents)), part])


def _text(text: str, count: int) -> Bytes2d:
    return np.tile(np.frombuffer(text.encode(), np.uint8), (count, 1))


def _bytes(column: npt.NDArray[np.generic]) -> Bytes2d:
    flat = np.ascontiguousarray(column).view(np.uint8)
    return flat.reshape(len(column), column.dtype.itemsize)

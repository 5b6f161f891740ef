"""
List every field of each model file format: read, without effect, or refused.

A field that is in no table is refused by name. `format_fields.csv` holds the tables,
and `docs/conversion-formats.md` shows them; a test compares the two.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec


class Field(msgspec.Struct, frozen=True):
    """
    One field of a format.

    Attributes:
        path: Path of the field: names joined by dots, `[]` for each entry of a list,
            `*` for any name.
        why: Its purpose, or the reason why it changes no prediction, or is refused.
    """

    path: str
    use: Literal["read", "no effect", "refused"]
    why: str


def _fields_of(form: str) -> tuple[Field, ...]:
    """Read the rows of one format, in the order of the file."""
    text = Path(__file__).with_suffix(".csv").read_text()
    rows = [row for row in csv.DictReader(text.splitlines()) if row["format"] == form]
    return tuple(msgspec.convert(row, Field) for row in rows)


XGBOOST, LIGHTGBM = _fields_of("xgboost"), _fields_of("lightgbm")
ONNX, PICKLE = _fields_of("onnx"), _fields_of("pickle")


def unknown_field(
    document: Mapping[str, Any],
    fields: Sequence[Field],
    *,
    rename: tuple[str, str] = ("", ""),
) -> tuple[str, str] | None:
    """
    Return the path of a field that is not read, with the reason; None if all are known.

    Args:
        rename: A part of a path, and its replacement in the table.
    """
    known = {one.path: one for one in fields}
    for path in _paths(document, ""):
        general = re.sub(r"\[\d+\]", "[]", path.replace(*rename, 1))
        found = known.get(general) or known.get(f"{general.rpartition('.')[0]}.*")
        if found is None or found.use == "refused":
            why = "" if found is None else found.why
            return path, why or "is a field that this version does not know"
    return None


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            at = f"{path}.{name}" if path else str(name)
            yield at
            yield from _paths(one, at)
    elif isinstance(value, list) and value and isinstance(value[0], (Mapping, list)):
        for number, one in enumerate(value):
            yield from _paths(one, f"{path}[{number}]")


def field_table(fields: Sequence[Field]) -> str:
    """Format fields as the Markdown table of `docs/conversion-formats.md`."""
    rows = [f"| `{one.path}` | {one.use} | {one.why} |" for one in fields]
    return "\n".join(["| field | use | note |", "|---|---|---|", *rows])

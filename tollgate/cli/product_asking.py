"""Prompt at the terminal for the parts of a product that no flag states."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from tollgate.errors import InputError
from tollgate.product.asked import Asked
from tollgate.product.reading import read_any


def completed(asked: Asked, *, ask: bool) -> Asked:
    """
    Prompt for the open choices: label, entities, time, amount, columns to leave out.

    Args:
        asked: Choices that flags state; an empty label is open.
        ask: True if a person is there to respond.

    Raises:
        InputError: The label is open, and no person is there.
    """
    if not ask:
        if not asked.label:
            raise InputError("--label", "name the column with the outcome")
        return asked
    columns = read_any(asked.table).frame.columns
    typer.echo(f"{asked.table.name} has {', '.join(columns)}", err=True)
    changes: dict[str, object] = {}
    if not asked.label:
        changes["label"] = _one("Which column is the outcome", columns, needed=True)
    if asked.time is None:
        changes["time"] = _one("Which holds the time of each row", columns)
    if not asked.entities and (asked.time or changes.get("time")):
        changes["entities"] = _several("Windows are kept for the ids in", columns)
    if asked.amount is None:
        changes["amount"] = _one("Which is money, in whole cents", columns)
    if not asked.drop:
        changes["drop"] = _several("Leave out (not known before the outcome)", columns)
    if not asked.sensitive:
        told = "Leave out and report errors by (sex, age, …)"
        changes["sensitive"] = _several(told, columns)
    return msgspec.structs.replace(asked, **changes)


def is_terminal() -> bool:
    """Return whether a person can read questions and answer them."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm_removal(product: str, repository: Path, *, folders: Sequence[str]) -> bool:
    """Ask for confirmation before a permanent removal."""
    shown = ", ".join(folders)
    return typer.confirm(
        f"Take {product} out of {repository} ({shown})? There is no way back", err=True
    )


def _one(question: str, columns: Sequence[str], *, needed: bool = False) -> str | None:
    while True:
        told = "" if needed else " (Enter: none)"
        found = str(
            typer.prompt(f"{question}?{told}", default="", show_default=False, err=True)
        )
        if found in columns or (not found and not needed):
            return found or None
        typer.echo(f"{found!r} is none of them", err=True)


def _several(question: str, columns: Sequence[str]) -> tuple[str, ...]:
    while True:
        told = f"{question}? (names, comma between; Enter: none)"
        text = str(typer.prompt(told, default="", show_default=False, err=True))
        found = tuple(one.strip() for one in text.split(",") if one.strip())
        wrong = [one for one in found if one not in columns]
        if not wrong:
            return found
        typer.echo(f"{wrong[0]!r} is none of them", err=True)

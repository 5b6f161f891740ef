"""Prompt at the terminal for the parts of a product that no flag states."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from tollgate.errors import InputError
from tollgate.product.choices import ProductChoices
from tollgate.product.table_reading import read_table


def prompt_missing(choices: ProductChoices, *, ask: bool) -> ProductChoices:
    """
    Prompt for the open choices: label, entities, time, amount, columns to leave out.

    Args:
        choices: Choices that flags state; an empty label is open.
        ask: True if a person is there to respond.

    Raises:
        InputError: The label is open, and no person is there.
    """
    if not ask:
        if not choices.label:
            raise InputError("--label", "name the column with the outcome")
        return choices
    columns = read_table(choices.table).frame.columns
    typer.echo(f"{choices.table.name} has {', '.join(columns)}", err=True)
    changes: dict[str, object] = {}
    if not choices.label:
        changes["label"] = _one("Which column is the outcome", columns, needed=True)
    if choices.time is None:
        changes["time"] = _one("Which holds the time of each row", columns)
    if not choices.entities and (choices.time or changes.get("time")):
        changes["entities"] = _several("Compute windows for the ids in", columns)
    if choices.amount is None:
        changes["amount"] = _one("Which is money, in whole cents", columns)
    if not choices.drop:
        changes["drop"] = _several("Leave out (not known before the outcome)", columns)
    if not choices.sensitive:
        question = "Leave out and report errors by (sex, age, …)"
        changes["sensitive"] = _several(question, columns)
    return msgspec.structs.replace(choices, **changes)


def is_terminal() -> bool:
    """Return whether a person can read questions and answer them."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm_removal(product: str, repository: Path, *, folders: Sequence[str]) -> bool:
    """Ask for confirmation before a permanent removal."""
    shown = ", ".join(folders)
    return typer.confirm(
        f"Remove {product} from {repository} ({shown})? This is permanent.", err=True
    )


def _one(question: str, columns: Sequence[str], *, needed: bool = False) -> str | None:
    while True:
        hint = "" if needed else " (Enter: none)"
        found = str(
            typer.prompt(f"{question}?{hint}", default="", show_default=False, err=True)
        )
        if found in columns or (not found and not needed):
            return found or None
        typer.echo(f"{found!r} is none of them", err=True)


def _several(question: str, columns: Sequence[str]) -> tuple[str, ...]:
    while True:
        prompt = f"{question}? (names, comma between; Enter: none)"
        text = str(typer.prompt(prompt, default="", show_default=False, err=True))
        found = tuple(one.strip() for one in text.split(",") if one.strip())
        wrong = [one for one in found if one not in columns]
        if not wrong:
            return found
        typer.echo(f"{wrong[0]!r} is none of them", err=True)

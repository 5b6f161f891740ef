"""Declare options for a journal's folder, keys and anchor, with their defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollgate.settings import Settings

Folder = Annotated[
    Path | None,
    typer.Option(help="Folder of the journal.", show_default="STATE/journal/PRODUCT"),
]
Keys = Annotated[
    Path | None,
    typer.Option(help="Folder of the subjects' keys.", show_default="FOLDER.keys"),
]
Anchor = Annotated[
    Path | None,
    typer.Option(
        help="File with the hash of every link, best stored where others cannot write.",
        show_default="FOLDER.anchor",
    ),
]


def default_folder(chosen: Settings) -> Path:
    """Return the default folder of a product's journal, in the state folder."""
    return chosen.state_path / "journal" / chosen.product


def default_keys(folder: Path) -> Path:
    """Return the default folder of a journal's keys."""
    return folder.with_name(f"{folder.name}.keys")


def default_anchor(folder: Path) -> Path:
    """Return the default file of a journal's anchor, which lists every link."""
    return folder.with_name(f"{folder.name}.anchor")

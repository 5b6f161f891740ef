"""Where a journal is: its folder, and what belongs to it and lies elsewhere."""

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
        help="File that knows every link; best where others cannot write.",
        show_default="FOLDER.anchor",
    ),
]


def default_folder(chosen: Settings) -> Path:
    """Name the folder of a product's journal beside the rest of what a run leaves."""
    return chosen.state_path / "journal" / chosen.product


def default_keys(folder: Path) -> Path:
    """Name the folder of the keys that belong to a journal."""
    return folder.with_name(f"{folder.name}.keys")


def default_anchor(folder: Path) -> Path:
    """Name the file that knows every link of a journal."""
    return folder.with_name(f"{folder.name}.anchor")

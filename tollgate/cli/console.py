"""Print progress to standard error and results to standard output, for all commands."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tollgate.errors import InputError
from tollgate.repository.atomic import replace_file
from tollgate.settings import ADDRESSES, Settings, holds_password, load_settings
from tollgate.suggestions import suggest

out = Console()
err = Console(stderr=True)

Advance = Callable[[int, int], None]


def settings(*, product_is_known: bool = True, **flags: Any) -> Settings:
    """
    Merge defaults, tollgate.yaml, environment and flags.

    Args:
        product_is_known: True if the product must exist. False for commands that create
            it, or that read it from a folder that an option names.
        flags: Command-line options by setting; None for an option that was not given.

    Raises:
        InputError: A setting is invalid, or the product is unknown.
    """
    chosen = load_settings(environment=os.environ, folder=Path.cwd(), flags=flags)
    for name in ADDRESSES:
        if holds_password(flags.get(name) or ""):
            say(
                f"warning: --{name.replace('_', '-')} holds a password, and every user "
                "of this machine can read command lines: put the address into "
                f"TOLLGATE_{name.upper()} or tollgate.yaml"
            )
    if "product" in flags and product_is_known:
        require_products(chosen, chosen.products)
    return chosen


def require_products(chosen: Settings, products: Iterable[str]) -> None:
    """
    Refuse an unknown product; the error lists the nearest name and all known ones.

    Known products are those in the repository's folder, those with a journal or a
    served copy in the state folder, and those of the server that runs there. Where no
    product is known, as in an empty folder, the command itself reports what is missing.
    """
    from tollgate.audit.chain.links import link_name
    from tollgate.repository.releases.release_file import product_names
    from tollgate.server.address import find_server
    from tollgate.server.serving.loaded import record_path

    if chosen.repository_url:
        return
    named = tuple(products)
    folder, journals = chosen.repository_path, chosen.state_path / "journal"
    there = product_names(folder) if folder.is_dir() else []
    known = {*there, *(one.parent.name for one in journals.glob(f"*/{link_name(1)}"))}
    known |= {one for one in named if record_path(chosen.state_path, one).exists()}
    if not set(named) <= known:
        server = find_server(chosen.state_path)
        known |= set(server.products) if server else set()
    for name in named:
        if known and name not in known:
            problem = f"{name!r:.80} is no product of {folder}; {suggest(name, known)}"
            raise InputError("--product", problem)


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Show a progress bar during long work, which calls back with (done, total)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    hidden = not err.is_terminal  # without a terminal, print not even an empty line
    with Progress(*columns, console=err, transient=True, disable=hidden) as bars:
        task = bars.add_task(title, total=None)

        def advance(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield advance


def print_json(value: object) -> None:
    """
    Print a report as JSON, for every command with a `--json` option.

    Structs become objects with their fields as keys; NaN and infinite numbers become
    null.
    """
    text = msgspec.json.encode(value, enc_hook=_plain)
    sys.stdout.write(msgspec.json.format(text, indent=2).decode() + "\n")


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def write_private(path: Path, content: bytes) -> None:
    """
    Write a file that only its owner can read.

    Raises:
        InputError: It cannot be written.
    """
    try:
        replace_file(path, content, mode=0o600)
    except OSError as exc:
        raise InputError(path, f"cannot be written: {exc.strerror}") from exc


def number_table(*columns: str) -> Table:
    """Start a table of numbers: the first column to the left, the others right."""
    table = Table(box=None, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    return table


def result(text: str) -> None:
    """Print one line of a result to standard output."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a message for the person to standard error."""
    err.print(text, highlight=False, markup=False, soft_wrap=True)


class StepPrinter:
    """Print each finished step of long work with its duration."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()

    def report(self, title: str, text: str) -> None:
        """Print a finished step with its result."""
        now_s = time.monotonic()
        line = f"[green]✓[/] {title}: {text} [dim]({now_s - self._since_s:.1f} s)[/]"
        out.print(line, highlight=False, soft_wrap=True)
        self._since_s = now_s

"""What commands print: progress on standard error, results on standard output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tollgate.settings import Settings, load_settings

out = Console()
err = Console(stderr=True)

Advance = Callable[[int, int], None]


def settings(**flags: Any) -> Settings:
    """Merge defaults, tollgate.yaml, environment and flags."""
    return load_settings(environment=os.environ, folder=Path.cwd(), flags=flags)


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Show a bar while a long piece of work runs; it calls with (done, in all)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    hidden = not err.is_terminal  # where nobody watches, not even an empty line
    with Progress(*columns, console=err, transient=True, disable=hidden) as bars:
        task = bars.add_task(title, total=None)

        def advance(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield advance


def say(text: str) -> None:
    """Tell the person what happened, on standard error."""
    err.print(text, highlight=False, markup=False)

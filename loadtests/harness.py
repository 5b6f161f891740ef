"""Run a load test as a command: options, a served product, the report, its errors."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import msgspec

from loadtests.results.surroundings import CHECKOUT
from tollgate.errors import InputError, TollgateError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History
from tollgate.load.store_contents import (
    HISTORY_DAYS,
    compact_store,
    fill_store,
    served_spec,
    simulated_history,
)
from tollgate.load.traffic import Traffic, traffic_of
from tollgate.repository.slo import Form
from tollgate.server.serving.embedded import Embedded, serve
from tollgate_client import ClientError

REPOSITORY = CHECKOUT / "model_repository"


class Report(msgspec.Struct, frozen=True):
    """
    Result of a load test.

    Attributes:
        text: The text to print, or to write to `--out`.
        ok: False if the command exits with status 1.
        data: Content of a JSON file next to `--out`; empty for none.
    """

    text: str
    ok: bool = True
    data: bytes = b""


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m loadtests.NAME`."""
    return argparse.ArgumentParser(prog=f"python -m loadtests.{name}")


def add_population(parser: argparse.ArgumentParser) -> None:
    """Add options for the size of the history in the store."""
    parser.add_argument("--customers", type=int, default=Population().customers)
    parser.add_argument("--terminals", type=int, default=Population().terminals)


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add an option for the form in which the product is served."""
    forms = get_args(Form)
    parser.add_argument("--form", choices=forms, default=forms[0])


def add_repository(parser: argparse.ArgumentParser) -> None:
    """Add an option for the model repository to serve."""
    parser.add_argument("--repository", type=Path, default=REPOSITORY)


def run_command(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    *,
    measure: Callable[[argparse.Namespace], Report],
    least: dict[str, float] | None = None,
) -> int:
    """
    Parse options, measure, and print or write the report.

    A known error prints one line.

    Args:
        arguments: Words after the name of the command.
        measure: The load test; it gets the options, and the command line as `command`.
        least: Option -> lowest value.

    Returns:
        The exit status.
    """
    parsed = parser.parse_args(arguments)
    parsed.command = " ".join([parser.prog, *map(shlex.quote, arguments)])
    out: Path | None = getattr(parsed, "out", None)
    try:
        for name, value in (least or {}).items():
            if not getattr(parsed, name) >= value:  # also refuses NaN
                flag = f"--{name.replace('_', '-')}"
                raise InputError(flag, f"{getattr(parsed, name)} is below {value:g}")
        if out is not None and not out.resolve().parent.is_dir():
            raise InputError("--out", f"{out.parent} is not a folder")
        report = measure(parsed)
    except (TollgateError, ClientError) as error:
        name = parser.prog.removeprefix("python -m ")
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_status
    text = report.text.rstrip("\n") + "\n" if report.text else ""
    if out is None:
        print(text, end="")
    else:
        out.write_text(text)
        if report.data:
            out.with_suffix(".json").write_bytes(report.data)
    return 0 if report.ok else 1


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Make a folder for the files of a load test, and remove it at the end."""
    with TemporaryDirectory(prefix=f"tollgate-{name}-") as folder:
        yield Path(folder)


class Population(msgspec.Struct, frozen=True):
    """Number of customers, terminals and days in the history of the store."""

    customers: int = 5_000
    terminals: int = 10_000
    days: int = HISTORY_DAYS

    def __str__(self) -> str:
        """Describe the population as text."""
        return (
            f"{self.days} days of {self.customers:,} customers "
            f"at {self.terminals:,} terminals"
        )


class StoreContents:
    """
    The history that stores hold before the load, and the traffic that continues it.

    Args:
        repository: The model repository; its fraud product says what a store holds.
    """

    def __init__(
        self, population: Population, *, repository: Path = REPOSITORY
    ) -> None:
        self.population = population
        self.spec: FeatureSpec = served_spec(repository)
        self.history: History = simulated_history(
            self.spec,
            customers=population.customers,
            terminals=population.terminals,
            days=population.days,
        )

    @cached_property
    def traffic(self) -> Traffic:
        """Return purchases that continue the history."""
        return traffic_of(self.history, days=self.population.days)

    def __str__(self) -> str:
        """Describe the history as text."""
        return f"{len(self.history):,} simulated purchases, {self.population}"

    def fill(self, store_url: str) -> None:
        """Apply the history to a store, and let it compact its file."""
        fill_store(self.spec, self.history, store_url=store_url)
        compact_store(store_url)


@contextmanager
def serve_filled(
    contents: StoreContents,
    folder: Path,
    *,
    repository: Path = REPOSITORY,
    **settings: Any,
) -> Iterator[Embedded]:
    """
    Serve a repository with a store that holds a history.

    Args:
        folder: State folder of the server.
        settings: Settings of `serve`.

    Raises:
        TollgateError: The repository cannot be served.
    """
    with serve(repository, state=folder, **settings) as server:
        say(f"filling the store with {len(contents.history):,} purchases")
        contents.fill(server.store_url)
        yield server

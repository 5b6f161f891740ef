"""Lint model repositories and tritonserver command lines: `tollgate check`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tollgate.cli import console
from tollgate.cli.options import Json, ModelConfigName, Repository
from tollgate.cli.repositories import open_for_reading
from tollgate.settings import Settings

if TYPE_CHECKING:
    from tollgate.repository.lint.lint_rule import Severity
    from tollgate.repository.lint.linting import Report

Product = Annotated[
    str | None,
    typer.Option(help="Check only this ensemble.", show_default="all models"),
]
ServerArgs = Annotated[
    Path | None,
    typer.Option(
        help="File that starts the server: script, Dockerfile, compose "
        "file, chart or unit.",
        metavar="FILE",
    ),
]
TargetRelease = Annotated[
    str | None,
    typer.Option(
        help="Triton release that will serve the repository, such as 26.07 or 2.51.0.",
        metavar="RELEASE",
        show_default="the image of --server-args",
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        help="CPU cores that the server may use.", min=1, show_default="this machine's"
    ),
]
Objective = Annotated[
    float | None,
    typer.Option(
        help="Maximum time to an answer, in milliseconds.",
        metavar="MS",
        min=0.1,
        show_default="a product's slo.yaml, or 50",
    ),
]
Threshold = Annotated[
    Literal["advice", "warning", "error"],
    typer.Option(help="Least severe findings to show."),
]
Format = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--format", help="Format of the findings; json is the same as --json."
    ),
]
Rules = Annotated[
    bool,
    typer.Option(
        "--rules", help="Print the rules as a Markdown table, and check nothing."
    ),
]


def check(
    repository: Repository = None,
    product: Product = None,
    model_config_name: ModelConfigName = None,
    server_args: ServerArgs = None,
    target: TargetRelease = None,
    cores: Cores = None,
    objective: Objective = None,
    severity: Threshold = "warning",
    output_format: Format = "text",
    as_json: Json = False,
    rules: Rules = False,
) -> None:
    """Check any Triton repository offline; exit status 1 for warnings, 2 for errors."""
    from tollgate.repository.lint.exposure import release_of
    from tollgate.repository.lint.lint_rule import Severity
    from tollgate.repository.lint.linting import Question, lint, table
    from tollgate.repository.lint.start_line import read_server_command_line

    if rules:
        _print(table())
        return
    chosen = console.settings(
        product_is_known=product is not None,
        repository=repository,
        product=product,
        model_config_name=model_config_name,
    )
    is_named = product is not None or (
        len(chosen.products) == 1 and chosen.products != Settings().products
    )
    with open_for_reading(chosen) as folder:
        release = release_of(target) if target else ""
        line = read_server_command_line(server_args) if server_args else None
        report = lint(
            Question(
                repository=folder,
                product=chosen.product if is_named else "",
                config_name=chosen.model_config_name,
                release=release,
                release_origin="--target",
                start_line=line,
                cores=cores or len(os.sched_getaffinity(0)),
                objective_ms=objective,
            )
        )
    as_json = as_json or output_format == "json"
    if not as_json and not server_args and report.products:
        _print_limits(len(report.products))
    _print_report(report, threshold=Severity[severity.upper()], as_json=as_json)


def _print_limits(products: int) -> None:
    """Print the limits that this machine sets a server, or why it cannot start one."""
    from tollgate.errors import SetupError
    from tollgate.server.processes.resources import measure

    try:
        here = measure(hard_files=True)
        here.require(products)
    except SetupError as error:
        console.say(f"this machine: {error}")
    else:
        console.say(f"this machine: {here.text(products)}")


def _print_report(report: Report, *, threshold: Severity, as_json: bool) -> None:
    """Print the findings at or above the threshold, and exit with their status."""
    from tollgate.repository.lint import lint_report as printed

    shown = printed.at_least(report.issues, threshold)
    status = printed.exit_status(shown)
    if as_json:
        _print([printed.json_text(shown, folder=Path.cwd())])
        raise typer.Exit(status)
    _print(printed.text_lines(shown, folder=Path.cwd()))
    if shown:
        console.say(printed.summary(shown))
    if not status:
        names = ", ".join(report.products) or f"{len(report.models)} model(s)"
        _print([f"{names}: sound"])
    if hidden := len(report.issues) - len(shown):
        console.say(f"{hidden} below {threshold}; --severity advice shows all")
    raise typer.Exit(status)


def _print(lines: Iterable[str]) -> None:
    """Print text literally: no colours, no markup in brackets, no line wrapping."""
    for line in lines:
        console.out.print(line, highlight=False, markup=False, soft_wrap=True)

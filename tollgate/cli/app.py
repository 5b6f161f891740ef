"""Assemble the `tollgate` command line: its groups, commands and help texts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import typer
from rich.markup import escape
from typer.core import TyperCommand

from tollgate import __version__
from tollgate.cli.decisions import explain_command, monitor_command, score_command
from tollgate.cli.decisions import journal_commands as journal
from tollgate.cli.decisions import journal_commands as journal_again
from tollgate.cli.decisions import journal_commands as journal_reading
from tollgate.cli.decisions import journal_commands as journal_retaining
from tollgate.cli.decisions import label_commands as labels
from tollgate.cli.models import (
    convert_commands,
    engine_command,
    evaluate_command,
    publish_command,
    simulate_command,
)
from tollgate.cli.models import feature_commands as features
from tollgate.cli.models import policy_commands as policy
from tollgate.cli.operations import (
    backfill_commands,
    budget_command,
    check_command,
    observability_commands,
    repair_command,
    serve_commands,
    stream_commands,
    tune_command,
)
from tollgate.cli.operations import challenger_commands as challenger
from tollgate.cli.operations import challenger_commands as challenger_changes
from tollgate.cli.operations import gateway_commands as gateway
from tollgate.cli.operations import list_commands as lists
from tollgate.cli.operations import release_commands as release
from tollgate.cli.operations import release_commands as release_changes
from tollgate.cli.operations import release_commands as release_versions
from tollgate.cli.products import demo_command
from tollgate.cli.products import product_commands as product
from tollgate.errors import ArgumentError, InputError

app = typer.Typer(
    name="tollgate",
    help="Approve, review or decline a payment while it is in flight.",
    epilog="Example: tollgate demo",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    # Commands and groups below have the help name of their parent.
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EVERYONE = "Start here"
_SERVICES = "Services: get decisions"
_ENGINEERS = "ML engineers: data, features, models"
_OPERATORS = "SREs: serve and check"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tollgate {__version__}")
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Parse the options that belong to no command."""


class _Command(TyperCommand):
    """
    Runs a command, and names its options in errors of the library.

    Refuses NaN in a numeric option, because every limit lets NaN pass.
    """

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        for name, value in ctx.params.items():
            if isinstance(value, float) and math.isnan(value):
                flag = "--" + name.replace("_", "-")
                raise typer.BadParameter("nan is no number", ctx, param_hint=flag)
        try:
            return super().invoke(ctx)
        except ArgumentError as error:
            options = ", ".join(map(self._option, error.source.split(", ")))
            raise InputError(options, error.problem, where=error.where) from error

    def _option(self, argument: str) -> str:
        """Name the option that sets an argument of the library; else the argument."""
        flag = "--" + argument.replace("_", "-")
        for parameter in self.params:
            flags = [one for one in parameter.opts if one.startswith("--")]
            if flags and (argument == parameter.name or flag in flags):
                return flags[0]
        return argument


def _group(name: str, panel: str, *, help: str, example: str) -> typer.Typer:
    """Add a group of commands, with an example in its help."""
    group = typer.Typer(
        help=help, epilog=f"Example: {escape(example)}", no_args_is_help=True
    )
    app.add_typer(group, name=name, rich_help_panel=panel)
    return group


def _command(
    group: typer.Typer,
    name: str,
    function: Callable[..., None],
    *,
    example: str,
    panel: str | None = None,
) -> None:
    """Add a command, with an example in its help."""
    epilog = f"Example: {escape(example)}"
    group.command(name, cls=_Command, epilog=epilog, rich_help_panel=panel)(function)


_command(
    app,
    "demo",
    demo_command.demo,
    example="tollgate demo --product credit",
    panel=_EVERYONE,
)
product_commands = _group(
    "product",
    _EVERYONE,
    help="Create a product from a table of your data; list and remove products.",
    example="tollgate product new loans --from loans.csv --label defaulted",
)
_command(
    product_commands,
    "new",
    product.new,
    example="tollgate product new loans --from loans.csv --label defaulted --yes",
)
_command(
    product_commands,
    "list",
    product.list_products,
    example="tollgate product list --json",
)
_command(
    product_commands,
    "remove",
    product.remove,
    example="tollgate product remove loans --yes",
)
_command(
    app,
    "score",
    score_command.score,
    example="tollgate score purchases.csv --product fraud --out decided.parquet",
    panel=_SERVICES,
)
_command(
    app,
    "explain",
    explain_command.explain,
    example="tollgate explain p-2 --customer alice",
    panel=_SERVICES,
)
_command(
    app,
    "simulate",
    simulate_command.simulate,
    example="tollgate simulate history.parquet --days 90 --seed 7",
    panel=_ENGINEERS,
)
feature_commands = _group(
    "features",
    _ENGINEERS,
    help="Show, compare, build and replay features.",
    example="tollgate features show terminal_risk_7d",
)
_command(
    feature_commands,
    "show",
    features.show,
    example="tollgate features show terminal_risk_7d --json",
)
_command(
    feature_commands,
    "diff",
    features.diff,
    example="tollgate features diff old.yaml new.yaml",
)
_command(
    feature_commands,
    "build",
    features.build,
    example="tollgate features build history.parquet features.parquet --dtype float32",
)
_command(
    feature_commands,
    "replay",
    features.replay,
    example="tollgate features replay history.parquet "
    "--from 2018-05-10 --until 2018-05-15",
)
_command(
    app,
    "convert",
    convert_commands.convert,
    example="tollgate convert model.json --out converted --product fraud",
    panel=_ENGINEERS,
)
_command(
    app,
    "adopt",
    convert_commands.adopt,
    example="tollgate adopt model.onnx --out adopted --product fraud",
    panel=_ENGINEERS,
)
_command(
    app,
    "evaluate",
    evaluate_command.evaluate,
    example="tollgate evaluate history.parquet --expect 0.86,0.64,0.27",
    panel=_ENGINEERS,
)
policy_commands = _group(
    "policy",
    _ENGINEERS,
    help="Check, compare and simulate decision policies.",
    example="tollgate policy check policy.yaml",
)
_command(
    policy_commands,
    "check",
    policy.check,
    example="tollgate policy check policy.yaml --spec features.yaml",
)
_command(
    policy_commands,
    "diff",
    policy.diff,
    example="tollgate policy diff old.yaml new.yaml",
)
_command(
    policy_commands,
    "simulate",
    policy.simulate,
    example="tollgate policy simulate policy.yaml --on .tollgate/journal/fraud",
)
_command(
    app,
    "publish",
    publish_command.publish,
    example="tollgate publish converted --product fraud",
    panel=_ENGINEERS,
)
release_commands = _group(
    "release",
    _OPERATORS,
    help="List, compare, activate and roll back releases.",
    example="tollgate release list",
)
_command(
    release_commands,
    "list",
    release.list_releases,
    example="tollgate release list --product fraud",
)
_command(
    release_commands, "show", release.show, example="tollgate release show fraud-1"
)
_command(
    release_commands,
    "diff",
    release.diff,
    example="tollgate release diff fraud-1 fraud-2",
)
_command(
    release_commands,
    "history",
    release.history,
    example="tollgate release history --product fraud",
)
_command(
    release_commands,
    "status",
    release.status,
    example="tollgate release status --replica 127.0.0.1:8003",
)
_command(
    release_commands,
    "activate",
    release_changes.activate,
    example='tollgate release activate --set model=2 --reason "trained on May"',
)
_command(
    release_commands,
    "rollback",
    release_changes.rollback,
    example='tollgate release rollback --reason "too many declines"',
)
_command(
    release_commands,
    "approve",
    release_changes.approve,
    example="tollgate release approve fraud-2",
)
_command(
    release_commands,
    "versions",
    release_versions.versions,
    example="tollgate release versions --product fraud",
)
_command(
    release_commands,
    "render",
    release.render,
    example="tollgate release render --out rendered",
)
challenger_commands = _group(
    "challenger",
    _OPERATORS,
    help="Try a release in shadow or canary, alongside the active release.",
    example='tollgate challenger start --set model=2 --reason "trained on May"',
)
_command(
    challenger_commands,
    "start",
    challenger_changes.start,
    example='tollgate challenger start --set model=2 --reason "trained on May"',
)
_command(
    challenger_commands,
    "raise",
    challenger_changes.raise_share,
    example='tollgate challenger raise --percent 20 --reason "gates hold at 5"',
)
_command(
    challenger_commands,
    "promote",
    challenger_changes.promote,
    example='tollgate challenger promote --reason "gates hold at 20"',
)
_command(
    challenger_commands,
    "stop",
    challenger_changes.stop,
    example='tollgate challenger stop --reason "declines too much"',
)
_command(
    challenger_commands,
    "report",
    challenger.report,
    example="tollgate challenger report --picture report.png",
)
_command(
    challenger_commands,
    "run",
    challenger.run,
    example="tollgate challenger run --metrics-port 9146",
)
_command(
    app,
    "up",
    serve_commands.up,
    example="tollgate up --product fraud --product credit",
    panel=_OPERATORS,
)
_command(
    app,
    "serve",
    serve_commands.serve,
    example="tollgate serve --store-url redis://127.0.0.1:6379",
    panel=_OPERATORS,
)
_command(
    app,
    "bundle",
    serve_commands.bundle,
    example="tollgate bundle bundle.tar.gz",
    panel=_OPERATORS,
)
_command(
    app,
    "stream",
    stream_commands.stream,
    example="tollgate stream --feed-url redis://127.0.0.1:6379",
    panel=_OPERATORS,
)
_command(
    app,
    "feed",
    stream_commands.feed,
    example="tollgate feed history.parquet --product fraud",
    panel=_OPERATORS,
)
_command(
    app,
    "materialize",
    backfill_commands.materialize,
    example="tollgate materialize history.parquet --rate 4000",
    panel=_OPERATORS,
)
_command(
    app,
    "rebuild",
    backfill_commands.rebuild,
    example="tollgate rebuild history.parquet",
    panel=_OPERATORS,
)
repair_commands = _group(
    "repair",
    _OPERATORS,
    help="Apply purchases that the store missed.",
    example="tollgate repair drain",
)
_command(
    repair_commands,
    "drain",
    repair_command.drain,
    example="tollgate repair drain --rate 1000",
)
journal_commands = _group(
    "journal",
    _OPERATORS,
    help="Archive decisions in a sealed journal; verify, replay, "
    "export and erase them.",
    example="tollgate journal verify .tollgate/journal/fraud",
)
_command(
    journal_commands, "run", journal.run, example="tollgate journal run --keep 400d"
)
_command(
    journal_commands,
    "verify",
    journal.verify,
    example="tollgate journal verify .tollgate/journal/fraud",
)
_command(
    journal_commands,
    "retain",
    journal_retaining.retain,
    example="tollgate journal retain --keep 400d",
)
_command(
    journal_commands,
    "erase",
    journal.erase,
    example="tollgate journal erase --customer alice",
)
_command(
    journal_commands,
    "export",
    journal_reading.export,
    example="tollgate journal export p-2 --out decision.html",
)
_command(
    journal_commands,
    "replay",
    journal_again.replay,
    example="tollgate journal replay .tollgate/journal/fraud",
)
_command(
    journal_commands,
    "dataset",
    journal_again.dataset,
    example="tollgate journal dataset rows.parquet --legitimate-after 30d",
)
gateway_commands = _group(
    "gateway",
    _OPERATORS,
    help="Run nginx in front of Triton: TLS, API keys or client certificates, limits.",
    example="tollgate gateway certificates certs --host localhost",
)
_command(
    gateway_commands,
    "run",
    gateway.run,
    example="tollgate gateway run --tls-cert certs/server.pem "
    "--tls-key certs/server.key --api-keys callers.keys",
)
_command(
    gateway_commands,
    "metrics",
    gateway.metrics,
    example="tollgate gateway metrics requests.pipe --metrics-port 9145 "
    "--rate 1000 --in-flight 40 --caller-in-flight 28 --bulk-in-flight 1",
)
_command(
    gateway_commands,
    "key",
    gateway.key,
    example="tollgate gateway key shop --api-keys callers.keys",
)
_command(
    gateway_commands,
    "certificates",
    gateway.certificates,
    example="tollgate gateway certificates certs --host localhost --caller shop",
)
list_commands = _group(
    "lists",
    _OPERATORS,
    help="Manage the allow and deny lists that policies use.",
    example="tollgate lists show stolen_cards",
)
_command(
    list_commands,
    "add",
    lists.add,
    example="tollgate lists add stolen_cards card-17 card-18",
)
_command(
    list_commands,
    "remove",
    lists.remove,
    example="tollgate lists remove stolen_cards card-17",
)
_command(
    list_commands,
    "show",
    lists.show,
    example="tollgate lists show stolen_cards card-17",
)
_command(
    list_commands,
    "load",
    lists.load,
    example="tollgate lists load stolen_cards cards.txt --replace",
)
label_commands = _group(
    "labels",
    _ENGINEERS,
    help="Load labels and measure the accuracy of each release.",
    example="tollgate labels accuracy",
)
_command(
    label_commands,
    "load",
    labels.load,
    example="tollgate labels load labels.csv --legitimate-after 30d",
)
_command(
    label_commands,
    "accuracy",
    labels.accuracy,
    example="tollgate labels accuracy --legitimate-after 30d",
)
_command(
    app,
    "engine",
    engine_command.engine,
    example="tollgate engine model.onnx --out model.plan --precision fp16",
    panel=_OPERATORS,
)
_command(
    app,
    "monitor",
    monitor_command.monitor,
    example="tollgate monitor --product fraud --report monitor.html",
    panel=_OPERATORS,
)
_command(
    app,
    "budget",
    budget_command.budget,
    example="tollgate budget --rate 200 --seconds 20",
    panel=_OPERATORS,
)
_command(
    app,
    "tune",
    tune_command.tune,
    example="tollgate tune --preset low-latency --yes",
    panel=_OPERATORS,
)
_command(
    app,
    "check",
    check_command.check,
    example="tollgate check --product fraud --severity advice",
    panel=_OPERATORS,
)
_command(
    app,
    "metrics",
    observability_commands.metrics,
    example="tollgate metrics",
    panel=_OPERATORS,
)
_command(
    app,
    "alerts",
    observability_commands.alerts,
    example="tollgate alerts --out alerts --product fraud",
    panel=_OPERATORS,
)
_command(
    app,
    "dashboards",
    observability_commands.dashboards,
    example="tollgate dashboards --out dashboards",
    panel=_OPERATORS,
)

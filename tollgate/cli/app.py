"""Assemble the `tollgate` command line: its groups, commands and help texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tollgate import __version__
from tollgate.cli.command import Command, example
from tollgate.cli.decisions import decision_commands as decisions
from tollgate.cli.decisions import journal_commands as journal
from tollgate.cli.decisions import monitor_command as monitor
from tollgate.cli.models import convert_commands as convert
from tollgate.cli.models import evaluation_commands as evaluation
from tollgate.cli.models import feature_commands as features
from tollgate.cli.models import policy_commands as policy
from tollgate.cli.models import repository_commands as repository
from tollgate.cli.operations import alarm_commands as alarms
from tollgate.cli.operations import challenger_commands as challenger
from tollgate.cli.operations import device_command as device
from tollgate.cli.operations import door_command as door
from tollgate.cli.operations import edge_commands as edge
from tollgate.cli.operations import gateway_commands as gateway
from tollgate.cli.operations import latency_commands as latency
from tollgate.cli.operations import observability_commands as observability
from tollgate.cli.operations import release_commands as release
from tollgate.cli.operations import serve_commands as serve
from tollgate.cli.operations import store_commands as store
from tollgate.cli.products import demo_commands as demo
from tollgate.cli.products import product_commands as product
from tollgate.compiled import describe

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
        typer.echo(f"tollgate {__version__}\ncompiled loops: {describe()}")
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and the compiled loops in use, and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Parse the options that belong to no command."""


_groups: dict[str, typer.Typer] = {}


def _group(name: str, panel: str, help: str, arguments: str) -> None:
    """Add a group of commands; its help shows an example with these arguments."""
    _groups[name] = typer.Typer(
        help=help, epilog=example(name, arguments), no_args_is_help=True
    )
    app.add_typer(_groups[name], name=name, rich_help_panel=panel)


def _command(
    path: str,
    function: Callable[..., None],
    arguments: str = "",
    *,
    panel: str | None = None,
) -> None:
    """Add a command, such as "release list", with an example of its arguments."""
    group, _, name = path.rpartition(" ")
    (_groups[group] if group else app).command(
        name, cls=Command, epilog=example(path, arguments), rich_help_panel=panel
    )(function)


_command("demo", demo.demo, "--product credit", panel=_EVERYONE)
_group(
    "product",
    _EVERYONE,
    "Create a product from a table of your data; list and remove products.",
    "new loans --from loans.csv --label defaulted",
)
_command("product new", product.new, "loans --from loans.csv --label defaulted --yes")
_command("product list", product.list_products, "--json")
_command("product remove", product.remove, "loans --yes")
_command(
    "score",
    decisions.score,
    "purchases.csv --product fraud --out decided.parquet",
    panel=_SERVICES,
)
_command("explain", decisions.explain, "p-2 --customer alice", panel=_SERVICES)
_command(
    "simulate", demo.simulate, "history.parquet --days 90 --seed 7", panel=_ENGINEERS
)
_group(
    "features",
    _ENGINEERS,
    "Show, compare, build and replay features.",
    "show terminal_risk_7d",
)
_command("features show", features.show, "terminal_risk_7d --json")
_command("features diff", features.diff, "old.yaml new.yaml")
_command(
    "features build", features.build, "history.parquet features.parquet --dtype float32"
)
_command(
    "features replay",
    features.replay,
    "history.parquet --from 2018-05-10 --until 2018-05-15",
)
_command(
    "convert",
    convert.convert,
    "model.json --out converted --product fraud",
    panel=_ENGINEERS,
)
_command(
    "adopt", convert.adopt, "model.onnx --out adopted --product fraud", panel=_ENGINEERS
)
_command(
    "evaluate",
    evaluation.evaluate,
    "history.parquet --expect 0.86,0.64,0.27",
    panel=_ENGINEERS,
)
_group(
    "policy",
    _ENGINEERS,
    "Check, compare and simulate decision policies.",
    "check policy.yaml",
)
_command("policy check", policy.check, "policy.yaml --spec features.yaml")
_command("policy diff", policy.diff, "old.yaml new.yaml")
_command("policy simulate", policy.simulate, "policy.yaml --on .tollgate/journal/fraud")
_command("publish", repository.publish, "converted --product fraud", panel=_ENGINEERS)
_group("release", _OPERATORS, "List, compare, activate and roll back releases.", "list")
_command("release list", release.list_releases, "--product fraud")
_command("release show", release.show, "fraud-1")
_command("release diff", release.diff, "fraud-1 fraud-2")
_command("release history", release.history, "--product fraud")
_command("release status", release.status, "--replica 127.0.0.1:8003")
_command(
    "release activate", release.activate, '--set model=2 --reason "trained on May"'
)
_command("release rollback", release.rollback, '--reason "too many declines"')
_command("release approve", release.approve, "fraud-2")
_command("release versions", release.versions, "--product fraud")
_command("release render", release.render, "--out rendered")
_group(
    "challenger",
    _OPERATORS,
    "Try a release in shadow or canary, alongside the active release.",
    'start --set model=2 --reason "trained on May"',
)
_command(
    "challenger start", challenger.start, '--set model=2 --reason "trained on May"'
)
_command(
    "challenger raise",
    challenger.raise_share,
    '--percent 20 --reason "gates hold at 5"',
)
_command("challenger promote", challenger.promote, '--reason "gates hold at 20"')
_command("challenger stop", challenger.stop, '--reason "declines too much"')
_command("challenger report", challenger.report, "--picture report.png")
_command("challenger run", challenger.run, "--metrics-port 9146")
_command("up", serve.up, "--product fraud --product credit", panel=_OPERATORS)
_command("serve", serve.serve, "--store-url redis://127.0.0.1:6379", panel=_OPERATORS)
_command("bundle", serve.bundle, "bundle.tar.gz", panel=_OPERATORS)
_command("stream", store.stream, "--feed-url redis://127.0.0.1:6379", panel=_OPERATORS)
_command("feed", store.feed, "history.parquet --product fraud", panel=_OPERATORS)
_group(
    "alarms",
    _OPERATORS,
    "Score readings from a stream and publish alarms; deliver them to a webhook.",
    "run --feed-url mqtt://127.0.0.1:1883 --topic plant/+/readings",
)
_command(
    "alarms run",
    alarms.run,
    "--feed-url mqtt://127.0.0.1:1883 --topic plant/+/readings",
)
_command(
    "alarms deliver",
    alarms.deliver,
    "--webhook-url https://example.com/alarms --secret-file webhook.secret",
)
_command(
    "materialize", store.materialize, "history.parquet --rate 4000", panel=_OPERATORS
)
_group(
    "migrate",
    _OPERATORS,
    "Change what a live product stores, such as its windows, without losing events.",
    "start --spec features.yaml",
)
_command("migrate start", store.migrate_start, "--spec features.yaml")
_command("migrate status", store.migrate_status, "--product fraud")
_command("migrate end", store.migrate_end, "--product fraud")
_command("rebuild", store.rebuild, "history.parquet", panel=_OPERATORS)
_group("repair", _OPERATORS, "Apply purchases that the store missed.", "drain")
_command("repair drain", store.drain, "--rate 1000")
_group(
    "journal",
    _OPERATORS,
    "Archive decisions in a sealed journal; verify, replay, export and erase them.",
    "verify .tollgate/journal/fraud",
)
_command("journal run", journal.run, "--keep 400d")
_command("journal verify", journal.verify, ".tollgate/journal/fraud")
_command("journal retain", journal.retain, "--keep 400d")
_command("journal erase", journal.erase, "--customer alice")
_command("journal export", journal.export, "p-2 --out decision.html")
_command("journal replay", journal.replay, ".tollgate/journal/fraud")
_command("journal dataset", journal.dataset, "rows.parquet --legitimate-after 30d")
_group(
    "gateway",
    _OPERATORS,
    "Run nginx in front of Triton: TLS, API keys or client certificates, limits.",
    "certificates certs --host localhost",
)
_command(
    "gateway run",
    gateway.run,
    "--tls-cert certs/server.pem --tls-key certs/server.key --api-keys callers.keys",
)
_command(
    "gateway metrics",
    gateway.metrics,
    "requests.pipe --metrics-port 9145 --rate 1000 --in-flight 40 "
    "--caller-in-flight 28 --bulk-in-flight 1",
)
_command("gateway key", gateway.key, "shop --api-keys callers.keys")
_command(
    "gateway certificates", gateway.certificates, "certs --host localhost --caller shop"
)
_command("door", door.door, "--port 8080 --api-keys callers.keys", panel=_OPERATORS)
_group(
    "edge",
    _OPERATORS,
    "Decide on devices, without a server: sign and pack releases for them.",
    "pack fraud --key release.key --out fraud.bundle",
)
_command("edge key", edge.key, "release.key release.pub")
_command("edge pack", edge.pack, "fraud --key release.key --out fraud.bundle")
_command("edge run", device.run, device.RUN_EXAMPLE)
_command("edge sync", device.sync, device.SYNC_EXAMPLE)
_command(
    "edge release",
    edge.release,
    "tills fraud.bundle --store s3://bucket/edge --key release.key",
)
_command(
    "edge rollback",
    edge.rollback,
    "tills --store s3://bucket/edge --key release.key",
)
_command(
    "edge collect",
    edge.collect,
    "tills --store s3://bucket/edge --journal-url redis://127.0.0.1:6379 --every 30s",
)
_group(
    "lists",
    _OPERATORS,
    "Manage the allow and deny lists that policies use.",
    "show stolen_cards",
)
_command("lists add", policy.add_ids, "stolen_cards card-17 card-18")
_command("lists remove", policy.remove_ids, "stolen_cards card-17")
_command("lists show", policy.show_list, "stolen_cards card-17")
_command("lists load", policy.load_list, "stolen_cards cards.txt --replace")
_group(
    "labels",
    _ENGINEERS,
    "Load labels and measure the accuracy of each release.",
    "accuracy",
)
_command("labels load", evaluation.load, "labels.csv --legitimate-after 30d")
_command("labels accuracy", evaluation.accuracy, "--legitimate-after 30d")
_command(
    "engine",
    convert.engine,
    "model.onnx --out model.plan --precision fp16",
    panel=_OPERATORS,
)
_command(
    "monitor",
    monitor.monitor,
    "--product fraud --report monitor.html",
    panel=_OPERATORS,
)
_command("budget", latency.budget, "--rate 200 --seconds 20", panel=_OPERATORS)
_command("tune", latency.tune, "--preset low-latency --yes", panel=_OPERATORS)
_command(
    "check", repository.check, "--product fraud --severity advice", panel=_OPERATORS
)
_command("metrics", observability.metrics, panel=_OPERATORS)
_command(
    "alerts", observability.alerts, "--out alerts --product fraud", panel=_OPERATORS
)
_command("dashboards", observability.dashboards, "--out dashboards", panel=_OPERATORS)

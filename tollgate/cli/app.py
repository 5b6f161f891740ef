"""The commands, grouped by who uses them."""

from __future__ import annotations

import typer

from tollgate.cli import (
    backfill,
    budget,
    challenger,
    challenger_changes,
    check,
    convert,
    data,
    demo,
    engine,
    evaluate,
    explain,
    features,
    gateway,
    journal,
    journal_again,
    journal_reading,
    journal_retaining,
    labels,
    lists,
    monitor,
    observing,
    policy,
    product,
    publish,
    release,
    release_changes,
    release_versions,
    repair,
    score,
    serve,
    stream,
    tune,
)

app = typer.Typer(
    name="tollgate",
    help="Approve, review or decline a payment while it is in flight.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
feature_commands = typer.Typer(
    help="What features are, how two specs differ, and their values over a history.",
    no_args_is_help=True,
)
policy_commands = typer.Typer(
    help="What decides: is a policy sound, how do two differ, what would one decide.",
    no_args_is_help=True,
)
list_commands = typer.Typer(
    help="Allow and deny lists that the policy asks for.", no_args_is_help=True
)
product_commands = typer.Typer(
    help="A product of your own out of a table, and taking it out again.",
    no_args_is_help=True,
)
release_commands = typer.Typer(
    help="What answers, what did, and going from one to the next.",
    no_args_is_help=True,
)
challenger_commands = typer.Typer(
    help="A release on trial beside the one that answers.", no_args_is_help=True
)
repair_commands = typer.Typer(
    help="Make good what the store missed.", no_args_is_help=True
)
journal_commands = typer.Typer(
    help="Keep decisions, prove them, forget people.", no_args_is_help=True
)
label_commands = typer.Typer(
    help="What purchases turned out to be, and how right releases were.",
    no_args_is_help=True,
)
gateway_commands = typer.Typer(
    help="nginx before Triton: TLS, keys or client certificates, limits.",
    no_args_is_help=True,
)

_EVERYONE = "Start here"
_SERVICES = "Services: get decisions"
_ENGINEERS = "ML engineers: data, features, models"
_OPERATORS = "SREs: serve and check"

app.command("demo", rich_help_panel=_EVERYONE)(demo.demo)
app.add_typer(product_commands, name="product", rich_help_panel=_EVERYONE)
product_commands.command("new")(product.new)
product_commands.command("remove")(product.remove)
app.command("score", rich_help_panel=_SERVICES)(score.score)
app.command("explain", rich_help_panel=_SERVICES)(explain.explain)
app.command("simulate", rich_help_panel=_ENGINEERS)(data.simulate)
app.add_typer(feature_commands, name="features", rich_help_panel=_ENGINEERS)
feature_commands.command("show")(features.show)
feature_commands.command("diff")(features.diff)
feature_commands.command("build")(features.build)
feature_commands.command("replay")(features.replay)
app.command("convert", rich_help_panel=_ENGINEERS)(convert.convert)
app.command("adopt", rich_help_panel=_ENGINEERS)(convert.adopt)
app.command("evaluate", rich_help_panel=_ENGINEERS)(evaluate.evaluate)
app.add_typer(policy_commands, name="policy", rich_help_panel=_ENGINEERS)
policy_commands.command("check")(policy.check)
policy_commands.command("diff")(policy.diff)
policy_commands.command("simulate")(policy.simulate)
app.command("publish", rich_help_panel=_ENGINEERS)(publish.publish)
app.add_typer(release_commands, name="release", rich_help_panel=_OPERATORS)
release_commands.command("list")(release.list_releases)
release_commands.command("show")(release.show)
release_commands.command("diff")(release.diff)
release_commands.command("history")(release.history)
release_commands.command("status")(release.status)
release_commands.command("activate")(release_changes.activate)
release_commands.command("rollback")(release_changes.rollback)
release_commands.command("approve")(release_changes.approve)
release_commands.command("versions")(release_versions.versions)
release_commands.command("render")(release.render)
app.add_typer(challenger_commands, name="challenger", rich_help_panel=_OPERATORS)
challenger_commands.command("start")(challenger_changes.start)
challenger_commands.command("raise")(challenger_changes.raise_share)
challenger_commands.command("promote")(challenger_changes.promote)
challenger_commands.command("stop")(challenger_changes.stop)
challenger_commands.command("report")(challenger.report)
challenger_commands.command("run")(challenger.run)
app.command("up", rich_help_panel=_OPERATORS)(serve.up)
app.command("serve", rich_help_panel=_OPERATORS)(serve.serve)
app.command("bundle", rich_help_panel=_OPERATORS)(serve.bundle)
app.command("stream", rich_help_panel=_OPERATORS)(stream.stream)
app.command("feed", rich_help_panel=_OPERATORS)(stream.feed)
app.command("materialize", rich_help_panel=_OPERATORS)(backfill.materialize)
app.command("rebuild", rich_help_panel=_OPERATORS)(backfill.rebuild)
app.add_typer(repair_commands, name="repair", rich_help_panel=_OPERATORS)
repair_commands.command("drain")(repair.drain)
app.add_typer(journal_commands, name="journal", rich_help_panel=_OPERATORS)
journal_commands.command("run")(journal.run)
journal_commands.command("verify")(journal.verify)
journal_commands.command("retain")(journal_retaining.retain)
journal_commands.command("erase")(journal.erase)
journal_commands.command("export")(journal_reading.export)
journal_commands.command("replay")(journal_again.replay)
journal_commands.command("dataset")(journal_again.dataset)
app.add_typer(gateway_commands, name="gateway", rich_help_panel=_OPERATORS)
gateway_commands.command("run")(gateway.run)
gateway_commands.command("metrics")(gateway.metrics)
gateway_commands.command("key")(gateway.key)
gateway_commands.command("certificates")(gateway.certificates)
app.add_typer(list_commands, name="lists", rich_help_panel=_OPERATORS)
list_commands.command("add")(lists.add)
list_commands.command("remove")(lists.remove)
list_commands.command("show")(lists.show)
list_commands.command("load")(lists.load)
app.add_typer(label_commands, name="labels", rich_help_panel=_ENGINEERS)
label_commands.command("load")(labels.load)
label_commands.command("accuracy")(labels.accuracy)
app.command("engine", rich_help_panel=_OPERATORS)(engine.engine)
app.command("monitor", rich_help_panel=_OPERATORS)(monitor.monitor)
app.command("budget", rich_help_panel=_OPERATORS)(budget.budget)
app.command("tune", rich_help_panel=_OPERATORS)(tune.tune)
app.command("check", rich_help_panel=_OPERATORS)(check.check)
app.command("metrics", rich_help_panel=_OPERATORS)(observing.metrics)
app.command("alerts", rich_help_panel=_OPERATORS)(observing.alerts)
app.command("dashboards", rich_help_panel=_OPERATORS)(observing.dashboards)

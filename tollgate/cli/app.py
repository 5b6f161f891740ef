"""The commands, grouped by who uses them."""

from __future__ import annotations

import typer

from tollgate.cli import (
    backfill,
    convert,
    data,
    demo,
    engine,
    evaluate,
    features,
    publish,
    repair,
    score,
    serve,
    stream,
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
repair_commands = typer.Typer(
    help="Make good what the store missed.", no_args_is_help=True
)

_EVERYONE = "Start here"
_SERVICES = "Services: get decisions"
_ENGINEERS = "ML engineers: data, features, models"
_OPERATORS = "SREs: serve and check"

app.command("demo", rich_help_panel=_EVERYONE)(demo.demo)
app.command("score", rich_help_panel=_SERVICES)(score.score)
app.command("simulate", rich_help_panel=_ENGINEERS)(data.simulate)
app.add_typer(feature_commands, name="features", rich_help_panel=_ENGINEERS)
feature_commands.command("show")(features.show)
feature_commands.command("diff")(features.diff)
feature_commands.command("build")(features.build)
feature_commands.command("replay")(features.replay)
app.command("convert", rich_help_panel=_ENGINEERS)(convert.convert)
app.command("adopt", rich_help_panel=_ENGINEERS)(convert.adopt)
app.command("evaluate", rich_help_panel=_ENGINEERS)(evaluate.evaluate)
app.command("publish", rich_help_panel=_ENGINEERS)(publish.publish)
app.command("up", rich_help_panel=_OPERATORS)(serve.up)
app.command("stream", rich_help_panel=_OPERATORS)(stream.stream)
app.command("feed", rich_help_panel=_OPERATORS)(stream.feed)
app.command("materialize", rich_help_panel=_OPERATORS)(backfill.materialize)
app.command("rebuild", rich_help_panel=_OPERATORS)(backfill.rebuild)
app.add_typer(repair_commands, name="repair", rich_help_panel=_OPERATORS)
repair_commands.command("drain")(repair.drain)
app.command("engine", rich_help_panel=_OPERATORS)(engine.engine)
app.command("check", rich_help_panel=_OPERATORS)(serve.check)

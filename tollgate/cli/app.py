"""The commands, grouped by who uses them."""

from __future__ import annotations

import typer

from tollgate.cli import convert, data, demo, engine, evaluate, publish, score, serve

app = typer.Typer(
    name="tollgate",
    help="Approve, review or decline a payment while it is in flight.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
features = typer.Typer(
    help="Compute features over a history, offline or through the online path.",
    no_args_is_help=True,
)

_EVERYONE = "Start here"
_SERVICES = "Services: get decisions"
_ENGINEERS = "ML engineers: data, features, models"
_OPERATORS = "SREs: serve and check"

app.command("demo", rich_help_panel=_EVERYONE)(demo.demo)
app.command("score", rich_help_panel=_SERVICES)(score.score)
app.command("simulate", rich_help_panel=_ENGINEERS)(data.simulate)
app.add_typer(features, name="features", rich_help_panel=_ENGINEERS)
features.command("build")(data.build)
features.command("replay")(data.replay)
app.command("convert", rich_help_panel=_ENGINEERS)(convert.convert)
app.command("adopt", rich_help_panel=_ENGINEERS)(convert.adopt)
app.command("evaluate", rich_help_panel=_ENGINEERS)(evaluate.evaluate)
app.command("publish", rich_help_panel=_ENGINEERS)(publish.publish)
app.command("up", rich_help_panel=_OPERATORS)(serve.up)
app.command("engine", rich_help_panel=_OPERATORS)(engine.engine)
app.command("check", rich_help_panel=_OPERATORS)(serve.check)

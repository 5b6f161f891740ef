"""Declare options that commands of several groups share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelConfigName = Annotated[
    str | None,
    typer.Option(
        help="Use configs/NAME.pbtxt of each model that has one.",
        metavar="NAME",
        show_default="config.pbtxt",
    ),
]
Product = Annotated[
    str | None,
    typer.Option(help="Product, by the name of its ensemble.", show_default="fraud"),
]
Repository = Annotated[
    str | None,
    typer.Option(
        help="Folder of the model repository, or an object store's URL where "
        "supported.",
        show_default="model_repository",
    ),
]
Arrival = Annotated[
    str | None,
    typer.Option(
        help="Column of the history with the time at which each purchase arrived; a "
        "row then sees the purchases that had arrived before it.",
        show_default="every purchase arrived at its own time",
        metavar="COLUMN",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print only JSON on standard output."),
]
State = Annotated[
    str | None,
    typer.Option(help="State folder of `tollgate up`.", show_default=".tollgate"),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of the online store.", show_default="that of the server in --state"
    ),
]
TrustPickle = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Load a pickle, which runs the code in it.",
        rich_help_panel="The model",
    ),
]
JournalUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of the Redis or Redis Cluster with the journal stream.",
        show_default="the store",
    ),
]
UntilIdle = Annotated[
    bool, typer.Option(help="End after a second without new records.")
]
ExtraLabels = Annotated[
    Path | None,
    typer.Option(help="Labels to add to the sealed ones: Parquet, CSV or JSON lines."),
]
Customer = Annotated[
    str | None,
    typer.Option(
        help="Customer id of the purchase; if omitted, the keys of all "
        "customers are tried."
    ),
]
DecisionId = Annotated[
    str, typer.Argument(help="Transaction id, or WRITER:NUMBER of a record.")
]
HistoryFile = Annotated[
    Path, typer.Argument(help="History: Parquet, CSV or JSON lines.")
]
Picture = Annotated[Path | None, typer.Option(help="Path of the PNG file to write.")]
UTC_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="Certificate authority of the gateway; PEM. Turns on TLS."),
]
TlsCert = Annotated[
    Path | None, typer.Option(help="Client certificate; PEM, with --tls-key.")
]
TlsKey = Annotated[
    Path | None, typer.Option(help="Private key of the client certificate; PEM.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File that contains only the caller's API key.")
]
UserColumn = Annotated[
    str | None,
    typer.Option("--user", help="Column of the events with the ids of users."),
]
ItemColumn = Annotated[
    str | None, typer.Option("--item", help="Column with the ids of items.")
]
TimeColumn = Annotated[
    str | None, typer.Option("--time", help="Column with the times of the events.")
]
ActionColumn = Annotated[
    str | None, typer.Option("--action", help="Column with view, cart or purchase.")
]

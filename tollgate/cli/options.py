"""Options that commands of several groups take, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

ModelConfigName = Annotated[
    str | None,
    typer.Option(
        help="Take configs/NAME.pbtxt of each model that has it.",
        metavar="NAME",
        show_default="config.pbtxt",
    ),
]
Product = Annotated[
    str | None, typer.Option(help="Ensemble it is for.", show_default="fraud")
]
Repository = Annotated[
    str | None, typer.Option(help="Model repository.", show_default="model_repository")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON on standard output, and nothing else."),
]
State = Annotated[
    str | None,
    typer.Option(help="State folder of `tollgate up`.", show_default=".tollgate"),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(help="Online store.", show_default="that of the server in --state"),
]

"""Declare the options of `product new`, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

_ROLES = "Roles of columns"
_MODEL = "The model"
_THRESHOLDS = "The thresholds: state either costs or rates"
_AGAIN = " May be repeated."

Name = Annotated[
    str, typer.Argument(help="Name of the product: lowercase letters, digits and _.")
]
Table = Annotated[
    Path,
    typer.Option(
        "--from", help="Table: Parquet, CSV with a header line, or JSON lines."
    ),
]
Label = Annotated[
    str, typer.Option(help="Column with the outcome.", rich_help_panel=_ROLES)
]
Positive = Annotated[
    str | None,
    typer.Option(
        help="Outcome that the score predicts; rows with high scores are "
        "reviewed or declined.",
        show_default="1, yes, true, or the rarer",
        rich_help_panel=_ROLES,
    ),
]
Entity = Annotated[
    list[str] | None,
    typer.Option(
        help="Column with ids to compute windows for; needs --time." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time", help="Column with the time of each row.", rich_help_panel=_ROLES
    ),
]
Amount = Annotated[
    str | None,
    typer.Option(help="Column with money, in whole cents.", rich_help_panel=_ROLES),
]
Id = Annotated[
    str | None,
    typer.Option("--id", help="Column with an id of each row.", rich_help_panel=_ROLES),
]
LabelDelay = Annotated[
    float,
    typer.Option(
        help="Days until the outcome of a row is known; needs --time. "
        "Younger rows are used neither for training nor for "
        "evaluation.",
        min=0,
        metavar="DAYS",
        rich_help_panel=_ROLES,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        help="Column to leave out, such as one known only after the outcome." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
Sensitive = Annotated[
    list[str] | None,
    typer.Option(
        help="Column to leave out; model errors are reported by its values." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        help="Column to use although it seems to reveal the outcome." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
MostFields = Annotated[
    int,
    typer.Option(
        help="Maximum number of columns to use; the most informative are taken.",
        min=1,
        rich_help_panel=_ROLES,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        help="Model trained on the table's columns, in a format that "
        "`tollgate convert` reads.",
        show_default="train one",
        rich_help_panel=_MODEL,
    ),
]
TrustPickle = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Load a pickle, which runs the code in it.",
        rich_help_panel=_MODEL,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="Columns of the table in the model's training order, if its "
        "file does not name them.",
        metavar="A,B,…",
        rich_help_panel=_MODEL,
    ),
]
Words = Annotated[
    Path | None,
    typer.Option(
        help="YAML or JSON file with the words of each column in the "
        "order of their codes, if the model's file does not list "
        "them.",
        rich_help_panel=_MODEL,
    ),
]
Python = Annotated[
    Path | None,
    typer.Option(
        "--python",
        help="Python of the environment that trained --model, if not this one.",
        show_default="our own",
        rich_help_panel=_MODEL,
    ),
]
Kind = Annotated[
    Literal["auto", "boosting", "deep-boosting", "logistic"],
    typer.Option(
        help="Kind of model to train; auto takes the one that ranks "
        "outcomes best on parts of the training rows.",
        rich_help_panel=_MODEL,
    ),
]
CostMissed = Annotated[
    float | None,
    typer.Option(
        help="Cost of approving a row that has the outcome, in any unit.",
        show_default="none: rates are used",
        rich_help_panel=_THRESHOLDS,
    ),
]
CostReview = Annotated[
    float | None,
    typer.Option(
        help="Cost of one review, in the same unit.",
        show_default="none: rates are used",
        rich_help_panel=_THRESHOLDS,
    ),
]
CostWrongDecline = Annotated[
    float | None,
    typer.Option(
        help="Cost of declining a row without the outcome, in the same unit.",
        show_default="none: no score declines",
        rich_help_panel=_THRESHOLDS,
    ),
]
ReviewRate = Annotated[
    float | None,
    typer.Option(
        help="Share of the rows to review, 0 to 1.",
        show_default="the share that has the outcome",
        rich_help_panel=_THRESHOLDS,
    ),
]
DeclineRate = Annotated[
    float | None,
    typer.Option(
        help="Maximum share of the rows to decline, 0 to 1.",
        show_default="0: no score declines",
        rich_help_panel=_THRESHOLDS,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not prompt.")]

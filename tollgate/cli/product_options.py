"""The options of `product new`, and what their help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

_ROLES = "What columns are"
_MODEL = "The model"
_THRESHOLDS = "The thresholds: state either costs or rates"
_AGAIN = " May be repeated."

Name = Annotated[str, typer.Argument(help="Of the product: small letters, digits, _.")]
Table = Annotated[
    Path, typer.Option("--from", help="Parquet, CSV or JSON lines; with a head.")
]
Label = Annotated[str, typer.Option(help="The outcome.", rich_help_panel=_ROLES)]
Positive = Annotated[
    str | None,
    typer.Option(
        help="The outcome that the score is the probability of; a high one is "
        "reviewed or declined.",
        show_default="1, yes, true, or the rarer",
        rich_help_panel=_ROLES,
    ),
]
Entity = Annotated[
    list[str] | None,
    typer.Option(
        help="Ids to keep windows for; needs --time." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
Time = Annotated[
    str | None,
    typer.Option("--time", help="When each row was.", rich_help_panel=_ROLES),
]
Amount = Annotated[
    str | None,
    typer.Option(help="Money, in whole cents.", rich_help_panel=_ROLES),
]
Id = Annotated[
    str | None,
    typer.Option("--id", help="An id of each row.", rich_help_panel=_ROLES),
]
LabelDelay = Annotated[
    float,
    typer.Option(
        help="Days until the outcome of a row is known; needs --time. Younger rows are "
        "neither learned from nor judged on.",
        min=0,
        metavar="DAYS",
        rich_help_panel=_ROLES,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        help="Leave out, such as what is known only afterwards." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
Sensitive = Annotated[
    list[str] | None,
    typer.Option(
        help="Leave out, and report the model's errors by it." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        help="Take it although it seems to give the outcome away." + _AGAIN,
        rich_help_panel=_ROLES,
    ),
]
MostFields = Annotated[
    int,
    typer.Option(
        help="Take so many columns at most, those that tell most.",
        min=1,
        rich_help_panel=_ROLES,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        help="Trained on the table's columns: what `tollgate convert` reads.",
        show_default="train one",
        rich_help_panel=_MODEL,
    ),
]
TrustPickle = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Load a pickle: that runs the code in it.",
        rich_help_panel=_MODEL,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="The table's columns in the order that the model was trained on, where "
        "its file does not name them.",
        metavar="A,B,…",
        rich_help_panel=_MODEL,
    ),
]
Words = Annotated[
    Path | None,
    typer.Option(
        help="YAML or JSON: columns with the words of their codes, in order, where "
        "the model's file does not list them.",
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
        help="Of the model that is trained; auto takes the one that ranks outcomes "
        "best, judged on parts of the rows to learn from.",
        rich_help_panel=_MODEL,
    ),
]
CostMissed = Annotated[
    float | None,
    typer.Option(
        help="Of approving a row that has the outcome, in any unit.",
        show_default="none: rates are used",
        rich_help_panel=_THRESHOLDS,
    ),
]
CostReview = Annotated[
    float | None,
    typer.Option(
        help="Of one review, in the same unit.",
        show_default="none: rates are used",
        rich_help_panel=_THRESHOLDS,
    ),
]
CostWrongDecline = Annotated[
    float | None,
    typer.Option(
        help="Of declining a row without the outcome, in the same unit.",
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
        help="Share of the rows to decline at most, 0 to 1.",
        show_default="0: no score declines",
        rich_help_panel=_THRESHOLDS,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing.")]

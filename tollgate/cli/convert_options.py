"""Declare the options of `convert` and `adopt`, with their help texts."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

_PROOF = "Proof"
_RECORD = "Record of the model"
_SMALLER = "Smaller and faster, judged on the sample"


class Quantization(str, Enum):
    """Time at which the scale of a layer's input is computed."""

    dynamic = "dynamic"
    static = "static"


class Strategy(str, Enum):
    """Method to write trees as plain operators."""

    auto = "auto"
    gemm = "gemm"
    traversal = "traversal"


Python = Annotated[
    Path | None,
    typer.Option(
        "--python",
        help="Python of the environment that trained the model; it reads "
        "the model file and predicts the rows of the proof.",
        show_default="our own",
    ),
]
Product = Annotated[
    str | None,
    typer.Option(
        help="Product to prove the model for, with its policy, features and model step."
    ),
]
Spec = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="New features.yaml of the product to prove the model for, "
        "not yet in the repository.",
    ),
]
Sample = Annotated[
    Path | None,
    typer.Option(
        help="Feature rows for the proof: Parquet, CSV or JSON lines.",
        rich_help_panel=_PROOF,
    ),
]
Expected = Annotated[
    Path | None,
    typer.Option(
        help="Predictions of the author's own library for --sample: one "
        "line per row, with the probability of the second class or "
        "of each class.",
        rich_help_panel=_PROOF,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="Feature names in training order, if the model file has none.",
        metavar="A,B,…",
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        help="Also prove the model in the onnxruntime of this Triton "
        "release, such as 26.07; may be repeated.",
        metavar="RELEASE",
        rich_help_panel=_PROOF,
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        help="Column of the sample with the true outcome of each row.",
        metavar="COLUMN",
        rich_help_panel=_RECORD,
    ),
]
Segment = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of the sample; quality is also reported by its "
        "values. May be repeated.",
        metavar="COLUMN",
        rich_help_panel=_RECORD,
    ),
]
Sensitive = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of the sample that must not influence decisions, "
        "such as sex: not a feature, but the model card reports "
        "errors by its values. May be repeated.",
        metavar="COLUMN",
        rich_help_panel=_RECORD,
    ),
]
Prune = Annotated[
    str | None,
    typer.Option(
        help="Number of trees to keep (50), depth of at most 4 (x4), "
        "both (50x4), or auto: the fastest model within the allowed "
        "loss.",
        metavar="TREES",
        rich_help_panel=_SMALLER,
    ),
]
Distill = Annotated[
    bool,
    typer.Option(
        help="Train a small network to predict as the model does, and "
        "convert that network.",
        rich_help_panel=_SMALLER,
    ),
]
Quantize = Annotated[
    Quantization | None,
    typer.Option(
        help="Write weights of linear models and networks as int8; for "
        "trees use --prune.",
        rich_help_panel=_SMALLER,
    ),
]
Tensorize = Annotated[
    Strategy | None,
    typer.Option(
        help="Write trees as plain operators, for runtimes without tree operators.",
        rich_help_panel=_SMALLER,
    ),
]
MaxFlips = Annotated[
    float | None,
    typer.Option(
        help="Maximum share of decisions that may change, 0 to 1.",
        show_default="0.001",
        min=0,
        max=1,
        rich_help_panel=_SMALLER,
    ),
]
MaxAucLoss = Annotated[
    float | None,
    typer.Option(
        help="Maximum loss of AUC.",
        show_default="0.001",
        min=0,
        rich_help_panel=_SMALLER,
    ),
]
MaxApLoss = Annotated[
    float | None,
    typer.Option(
        help="Maximum loss of average precision.",
        show_default="0.005",
        min=0,
        rich_help_panel=_SMALLER,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder to write; must be new or empty.")]

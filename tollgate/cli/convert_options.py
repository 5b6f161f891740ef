"""The options of `convert` and `adopt`, and what their help says."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

_PROOF = "What it is proven on"
_RECORD = "What is recorded with it"
_SMALLER = "Smaller and faster, judged on the sample"


class Quantization(str, Enum):
    """When the scale of a layer's input is computed."""

    dynamic = "dynamic"
    static = "static"


class Strategy(str, Enum):
    """How trees are written as plain operators."""

    auto = "auto"
    gemm = "gemm"
    traversal = "traversal"


Python = Annotated[
    Path | None,
    typer.Option(
        "--python",
        help="Python of the environment that trained the model: it reads the file "
        "and answers the rows of the proof.",
        show_default="our own",
    ),
]
Product = Annotated[
    str | None,
    typer.Option(help="Prove it for this product's policy, features and model step."),
]
Spec = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="A new features.yaml of the product, not yet in the repository, to prove "
        "it for.",
    ),
]
Sample = Annotated[
    Path | None,
    typer.Option(
        help="Rows of features: Parquet, CSV or JSON lines.", rich_help_panel=_PROOF
    ),
]
Expected = Annotated[
    Path | None,
    typer.Option(
        help="What the author's own library answers to the rows of --sample: a line "
        "each, the probability of the second class or one for each class.",
        rich_help_panel=_PROOF,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="Names of its features in the order of its training, where its file has "
        "none.",
        metavar="A,B,…",
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        help="Prove it in the onnxruntime of this Triton release too, such as 26.07; "
        "may be repeated.",
        metavar="RELEASE",
        rich_help_panel=_PROOF,
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        help="Column of the sample with what each row really was.",
        metavar="COLUMN",
        rich_help_panel=_RECORD,
    ),
]
Segment = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of the sample to judge the model by value of; may be repeated.",
        metavar="COLUMN",
        rich_help_panel=_RECORD,
    ),
]
Sensitive = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of the sample that nobody may be judged by, such as sex: no "
        "feature, but the card tells the errors by its values; may be repeated.",
        metavar="COLUMN",
        rich_help_panel=_RECORD,
    ),
]
Prune = Annotated[
    str | None,
    typer.Option(
        help="Keep so many trees (50), a depth of at most 4 (x4), both (50x4), or "
        "auto: the fastest that loses no more than it may.",
        metavar="TREES",
        rich_help_panel=_SMALLER,
    ),
]
Distill = Annotated[
    bool,
    typer.Option(
        help="Teach a small network to answer as the model does, and convert that.",
        rich_help_panel=_SMALLER,
    ),
]
Quantize = Annotated[
    Quantization | None,
    typer.Option(
        help="Write weights as int8: linear models and networks; trees are pruned.",
        rich_help_panel=_SMALLER,
    ),
]
Tensorize = Annotated[
    Strategy | None,
    typer.Option(
        help="Write trees as plain operators, for runtimes that know no trees.",
        rich_help_panel=_SMALLER,
    ),
]
MaxFlips = Annotated[
    float | None,
    typer.Option(
        help="Share of decisions that may change by it.",
        show_default="0.001",
        min=0,
        max=1,
        rich_help_panel=_SMALLER,
    ),
]
MaxAucLoss = Annotated[
    float | None,
    typer.Option(
        help="By how much the AUC may fall.",
        show_default="0.001",
        min=0,
        rich_help_panel=_SMALLER,
    ),
]
MaxApLoss = Annotated[
    float | None,
    typer.Option(
        help="By how much the average precision may fall.",
        show_default="0.005",
        min=0,
        rich_help_panel=_SMALLER,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder to write; new or empty.")]

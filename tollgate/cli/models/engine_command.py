"""Build a TensorRT plan on the machine that will serve it: `tollgate engine`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console


def engine(
    model: Annotated[Path, typer.Argument(help="ONNX model of plain operators.")],
    out: Annotated[
        Path, typer.Option(help="Path of the TensorRT plan to write.")
    ] = Path("model.plan"),
    precision: Annotated[
        str, typer.Option(help="Precision: fp32, fp16, or int8 for a quantised model.")
    ] = "fp32",
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            help="File that stores the builder's measurements for the next build."
        ),
    ] = None,
) -> None:
    """Build a TensorRT plan of a model for this machine's GPU."""
    from converters.tensorrt.engine import engine_from_onnx

    record = engine_from_onnx(
        model, out, precision=precision, timing_cache=timing_cache
    )
    console.say(
        f"TensorRT {record.tensorrt}, {record.gpu}, {record.precision} → {out}; its "
        "answers were not compared with the model's: try it in shadow first"
    )

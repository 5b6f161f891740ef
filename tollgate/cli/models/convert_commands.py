"""Convert trained models: `tollgate convert`, `adopt` and `engine`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.options import Json, Repository
from tollgate.errors import InputError

if TYPE_CHECKING:
    from converters.conversion import Conversion
    from converters.converted import Converted
    from converters.purpose import Purpose
    from tollgate.repository.models.artifact_file import Gate, ParityReport


# Declare the options of `convert` and `adopt`, with their help texts.

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
Calibration = Annotated[
    Path | None,
    typer.Option(
        help="Rows of normal behaviour, which turn the raw score of an outlier "
        "detector into a false-alarm probability.",
        show_default="the rows of --sample, without those whose label is 1",
        rich_help_panel=_RECORD,
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
Out = Annotated[Path, typer.Option(help="Folder to write; must be new or empty.")]


# Format the parity proof of a converted model as a table.


def proof_table(reports: Sequence[ParityReport], *, title: str) -> Table:
    """Show the figures of every runtime side by side, and the rows that differ most."""
    verdict = "agrees" if all(one.passed for one in reports) else "DOES NOT AGREE"
    table = Table(title=f"{title}: {verdict} with its source")
    table.add_column("measure")
    for report in reports:
        table.add_column(report.runtime, justify="right")
    columns = [_figures(one) for one in reports]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    for place in range(max(len(one.worst) for one in reports)):
        table.add_row(f"worst {place + 1}", *(_worst(one, place) for one in reports))
    return table


def _figures(report: ParityReport) -> dict[str, str]:
    """List every figure of one runtime."""
    alone = report.rows if report.alone is None else report.alone
    cuts = ", ".join(f"{one:g}" for one in report.thresholds)
    delta = "|Δp|" if report.unit is None else "|Δ| / size"
    deltas = {
        f"{delta} max": report.max_delta,
        f"{delta} mean": report.mean_delta or 0.0,
        **{f"{delta} at {level}": value for level, value in report.quantiles.items()},
        "alone, batched, shuffled": report.batch_delta,
        "tolerance allowed": report.tolerance,
        "tolerance that would pass": report.would_pass,
    }
    return {
        "rows": f"{report.rows:,}",
        **{f"  {kind}": f"{count:,}" for kind, count in report.kinds.items()},
        "of these asked alone too": f"{alone:,}",
        "rows the source refuses": f"{report.unanswered:,}",
        f"flips at {cuts}": f"{report.flips:,}",
        **{name: f"{value:.3g}" for name, value in deltas.items()},
    }


def _worst(report: ParityReport, place: int) -> str:
    """Format one of the rows that differ most."""
    if place >= len(report.worst):
        return ""
    one = report.worst[place]
    return (
        f"{one.kind} row {one.row}, class {one.label}\n"
        f"{one.source:.9g} → {one.converted:.9g}"
    )


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="Trained model: XGBoost JSON or UBJ, LightGBM text, or a pickle."
        ),
    ],
    out: Out,
    product: Product = None,
    spec: Spec = None,
    repository: Repository = None,
    trust_pickle: Annotated[
        bool, typer.Option(help="Load a pickle, which runs the code in it.")
    ] = False,
    python: Python = None,
    missing: Annotated[
        float | None,
        typer.Option(help="Value that stood for missing in training, if not NaN."),
    ] = None,
    sample: Sample = None,
    columns: Columns = None,
    expected: Expected = None,
    target: Target = None,
    label: Label = None,
    calibration: Calibration = None,
    segment: Segment = None,
    sensitive: Sensitive = None,
    prune: Annotated[
        str | None,
        typer.Option(
            help="Number of trees to keep (50), depth of at most 4 (x4), "
            "both (50x4), or auto: the fastest model within the allowed "
            "loss.",
            metavar="TREES",
            rich_help_panel=_SMALLER,
        ),
    ] = None,
    distill: Annotated[
        bool,
        typer.Option(
            help="Train a small network to predict as the model does, and "
            "convert that network.",
            rich_help_panel=_SMALLER,
        ),
    ] = False,
    quantize: Annotated[
        Quantization | None,
        typer.Option(
            help="Write weights of linear models and networks as int8; for "
            "trees use --prune.",
            rich_help_panel=_SMALLER,
        ),
    ] = None,
    tensorize: Annotated[
        Strategy | None,
        typer.Option(
            help="Write trees as plain operators, for runtimes without tree operators.",
            rich_help_panel=_SMALLER,
        ),
    ] = None,
    max_flips: Annotated[
        float | None,
        typer.Option(
            help="Maximum share of decisions that may change, 0 to 1.",
            show_default="0.001",
            min=0,
            max=1,
            rich_help_panel=_SMALLER,
        ),
    ] = None,
    max_auc_loss: Annotated[
        float | None,
        typer.Option(
            help="Maximum loss of AUC.",
            show_default="0.001",
            min=0,
            rich_help_panel=_SMALLER,
        ),
    ] = None,
    max_ap_loss: Annotated[
        float | None,
        typer.Option(
            help="Maximum loss of average precision.",
            show_default="0.005",
            min=0,
            rich_help_panel=_SMALLER,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a trained model to ONNX and prove that it matches the original."""
    from converters.compression.compress import Shrinking
    from converters.conversion import Conversion

    asked = Conversion(
        source=source,
        columns=_columns(columns),
        sample=sample,
        expected=expected,
        label=label,
        calibration=calibration,
        segments=tuple(segment or ()),
        sensitive=tuple(sensitive or ()),
        targets=tuple(target or ()),
        shrinking=Shrinking(
            prune=prune,
            distill=distill,
            quantize=None if quantize is None else quantize.value,
            tensorize=None if tensorize is None else tensorize.value,
            gate=_gate(max_flips, max_auc_loss, max_ap_loss),
        ),
        trust_pickle=trust_pickle,
        python=python,
        missing=missing,
        purpose=_purpose(product, repository, spec=spec),
    )
    _run(asked, out=out, as_json=as_json)


def adopt(
    source: Annotated[Path, typer.Argument(help="ONNX classifier to check.")],
    out: Out,
    product: Product = None,
    spec: Spec = None,
    repository: Repository = None,
    sample: Sample = None,
    columns: Columns = None,
    expected: Expected = None,
    target: Target = None,
    label: Label = None,
    segment: Segment = None,
    sensitive: Sensitive = None,
    as_json: Json = False,
) -> None:
    """
    Check an existing ONNX classifier and bring it into the form that Triton serves.
    """
    from converters.conversion import Conversion
    from converters.sources.files.formats import format_of

    if format_of(source) != "onnx":
        raise InputError(source, "is no ONNX file; tollgate convert reads the others")
    asked = Conversion(
        source=source,
        sample=sample,
        expected=expected,
        label=label,
        segments=tuple(segment or ()),
        sensitive=tuple(sensitive or ()),
        targets=tuple(target or ()),
        purpose=_purpose(product, repository, spec=spec),
        columns=_columns(columns),
    )
    _run(asked, out=out, as_json=as_json)


def _columns(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(one.strip() for one in text.split(","))


def _gate(flips: float | None, auc_loss: float | None, ap_loss: float | None) -> Gate:
    """Build the limits of an accepted loss; missing options take their defaults."""
    from tollgate.repository.models.artifact_file import Gate

    usual = Gate()
    return Gate(
        flips=usual.flips if flips is None else flips,
        auc_loss=usual.auc_loss if auc_loss is None else auc_loss,
        ap_loss=usual.ap_loss if ap_loss is None else ap_loss,
    )


def _purpose(
    product: str | None, repository: str | None, *, spec: Path | None
) -> Purpose:
    """Read the product that the model is for; without a product, a generic purpose."""
    from converters.purpose import Purpose, purpose_of

    if product is None:
        if spec is not None:
            raise InputError("--spec", "belongs to a product: --product NAME")
        return Purpose()
    settings = console.settings(repository=repository, product=product)
    return purpose_of(settings.repository_path, product, new_spec=spec)


def _run(asked: Conversion, *, out: Path, as_json: bool) -> None:
    """Convert, print the proof, and write the folder unless the proof failed."""
    from converters.compression.compression_cost import trade_table
    from converters.compression.prune_sweep import sweep_table
    from converters.conversion import convert_file, made_from
    from converters.folder import require_new_folder, write_converted

    require_new_folder(out)
    with console.progress("proving"):
        converted = convert_file(asked)
    proven = converted.proven
    if not as_json:
        if converted.sweep is not None:
            console.out.print(sweep_table(converted.sweep))
        for trade in converted.trades:
            console.out.print(trade_table(trade))
        console.out.print(proof_table(proven.reports, title=str(asked.source)))
    write_converted(converted, out, made_from=made_from(asked, out))
    for line in converted.oracle.lines:
        console.say(line)
    warnings = [*converted.oracle.warnings, *_warnings(asked, converted)]
    for line in warnings:
        console.say(f"warning: {line}")
    facts = proven.facts
    trees = f"{facts.trees:,} trees, " if facts.trees else ""
    console.say(
        f"{facts.framework} {facts.objective}, {trees}"
        f"{len(converted.model):,} bytes → {out}"
    )
    if as_json:
        report = {
            "source": asked.source,
            "folder": out,
            "framework": facts.framework,
            "objective": facts.objective,
            "trees": facts.trees,
            "bytes": len(converted.model),
            "features": converted.names,
            "proof": proven.reports,
            "trades": converted.trades,
            "sweep": converted.sweep,
            "proven_against": converted.oracle.lines,
            "warnings": warnings,
        }
        console.print_json(report)


def _warnings(asked: Conversion, converted: Converted) -> list[str]:
    """Print warnings about facts that the model's file does not state."""
    facts, found = converted.proven.facts, []
    if facts.names is None and (asked.sample or asked.purpose.names):
        found.append(
            f"{asked.source} does not name its features; they are taken to be "
            f"{', '.join(converted.names):.300}, in this order, and every score is "
            "wrong if its author had another: --columns A,B,… states it"
        )
    if facts.written_by:
        found.append(
            f"written by {facts.framework} {facts.written_by}, read by "
            f"{facts.version}, which does not promise the same answers: compare with "
            "answers that the former gave"
        )
    return found


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
    from converters.tensorrt import engine_from_onnx

    record = engine_from_onnx(
        model, out, precision=precision, timing_cache=timing_cache
    )
    console.say(
        f"TensorRT {record.tensorrt}, {record.gpu}, {record.precision} → {out}; its "
        "answers were not compared with the model's: try it in shadow first"
    )

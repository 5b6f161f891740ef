"""
Convert a trained model into one that Triton can serve: `tollgate convert`, `adopt`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console
from tollgate.cli.convert_options import (
    Columns,
    Distill,
    Expected,
    Label,
    MaxApLoss,
    MaxAucLoss,
    MaxFlips,
    Out,
    Product,
    Prune,
    Python,
    Quantize,
    Sample,
    Segment,
    Sensitive,
    Spec,
    Target,
    Tensorize,
)
from tollgate.cli.options import Json, Repository
from tollgate.errors import InputError

if TYPE_CHECKING:
    from converters.conversion import Conversion
    from converters.converted import Converted
    from converters.purpose import Purpose
    from converters.trade import Gate


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
    segment: Segment = None,
    sensitive: Sensitive = None,
    prune: Prune = None,
    distill: Distill = False,
    quantize: Quantize = None,
    tensorize: Tensorize = None,
    max_flips: MaxFlips = None,
    max_auc_loss: MaxAucLoss = None,
    max_ap_loss: MaxApLoss = None,
    as_json: Json = False,
) -> None:
    """Convert a trained model to ONNX and prove that it matches the original."""
    from converters.conversion import Conversion
    from converters.shrinking import Shrinking

    asked = Conversion(
        source=source,
        columns=_columns(columns),
        sample=sample,
        expected=expected,
        label=label,
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
    from converters.sources.formats import format_of

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
    from converters.trade import Gate

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
    from converters.conversion import convert_file, made_from
    from converters.folder import require_new_folder, write_converted
    from converters.prune_picture import sweep_table
    from converters.trade_table import trade_table
    from tollgate.cli.proof_table import proof_table

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

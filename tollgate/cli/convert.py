"""`convert` and `adopt`: a trained model becomes one that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tollgate.cli import console
from tollgate.errors import InputError, RepositoryError

if TYPE_CHECKING:
    from converters.parity import ParityReport
    from converters.proof import Proven

_THRESHOLDS: tuple[float, ...] = (0.5,)  # without a product, whose policy would say

Product = Annotated[
    str | None,
    typer.Option(help="Prove it for this product's policy, features and model step."),
]
Sample = Annotated[
    Path | None,
    typer.Option(help="Rows of features: Parquet, CSV or JSON lines."),
]
Out = Annotated[Path, typer.Option(help="Folder to write; new or empty.")]
Repository = Annotated[
    str | None,
    typer.Option(help="Model repository.", show_default="model_repository"),
]


def convert(
    source: Annotated[
        Path, typer.Argument(help="XGBoost JSON or UBJ, LightGBM text, or a pickle.")
    ],
    out: Out,
    product: Product = None,
    sample: Sample = None,
    trust_pickle: Annotated[
        bool, typer.Option(help="Load a pickle: that runs the code in it.")
    ] = False,
    missing: Annotated[
        float | None,
        typer.Option(help="What stood for a missing value in training, if not NaN."),
    ] = None,
    repository: Repository = None,
) -> None:
    """Turn a trained model into ONNX and prove that it answers as before."""
    _run(
        source,
        out=out,
        product=product,
        sample=sample,
        trust_pickle=trust_pickle,
        missing=missing,
        repository=repository,
    )


def adopt(
    source: Annotated[Path, typer.Argument(help="An ONNX classifier.")],
    out: Out,
    product: Product = None,
    sample: Sample = None,
    repository: Repository = None,
) -> None:
    """Check a foreign ONNX classifier and give it the form that is served."""
    from converters.sources.formats import format_of

    if format_of(source) != "onnx":
        raise InputError(source, "is no ONNX file; tollgate convert reads the others")
    _run(
        source,
        out=out,
        product=product,
        sample=sample,
        trust_pickle=False,
        missing=None,
        repository=repository,
    )


def _run(
    source: Path,
    *,
    out: Path,
    product: str | None,
    sample: Path | None,
    trust_pickle: bool,
    missing: float | None,
    repository: str | None,
) -> None:
    from converters.proof import prove, require_new_folder, write_proven
    from converters.sample import read_sample
    from converters.served import decision_thresholds, read_served
    from converters.sources.opening import open_source
    from tollgate.features.spec import SPEC_FILE, load_spec

    require_new_folder(out)
    thresholds, spec_names, spec_hash, served = _THRESHOLDS, None, None, None
    if product is not None:
        settings = console.settings(repository=repository)
        served = read_served(settings.repository_path, product)
        spec = load_spec(served.file(served.product.features_step, name=SPEC_FILE))
        thresholds = decision_thresholds(served, spec)
        spec_names, spec_hash = spec.feature_names, f"{spec.spec_hash:016x}"
    rows = None if sample is None else read_sample(sample, names=spec_names)
    columns = (
        len(spec_names)
        if spec_names is not None
        else None
        if rows is None
        else rows.shape[1]
    )
    with open_source(
        source, trust_pickle=trust_pickle, missing=missing, columns=columns
    ) as model:
        facts = model.facts
        names = _names(source, spec_names, facts.names, columns=facts.columns)
        if sample is not None and spec_names is None and facts.names is not None:
            rows = read_sample(sample, names=facts.names)
        with console.progress("proving"):
            proven = prove(model, samples=rows, thresholds=thresholds)
    if served is not None:
        _require_fit(proven, served.product.steps[served.product.model_step])
    console.out.print(_table(proven.report, title=str(source)))
    write_proven(proven, out, names=names, spec_hash=spec_hash)
    console.say(
        f"{facts.framework} {facts.objective}, {facts.trees} trees, "
        f"{len(proven.model):,} bytes → {out}"
    )


def _names(
    source: Path,
    of_spec: tuple[str, ...] | None,
    of_model: tuple[str, ...] | None,
    *,
    columns: int,
) -> tuple[str, ...]:
    """Name the features; the model's own names must be those of the product."""
    if of_spec is None:
        return of_model or tuple(f"f{number}" for number in range(columns))
    if len(of_spec) != columns:
        raise InputError(
            source, f"has {columns} features, the product has {len(of_spec)}"
        )
    if of_model is not None and of_model != of_spec:
        at = next(n for n, name in enumerate(of_spec) if of_model[n] != name)
        raise InputError(
            source,
            f"was trained with {of_model[at]!r} where the product has {of_spec[at]!r}",
            where=f"feature {at}",
        )
    return of_spec


def _require_fit(proven: Proven, config: Any) -> None:
    """Raise RepositoryError unless the model fits its step's configuration."""
    import tempfile

    from tollgate.repository.onnx_model import MODEL_FILE, onnx_findings

    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        path = Path(name) / MODEL_FILE
        path.write_bytes(proven.model)
        for finding in onnx_findings(path, config):
            raise RepositoryError("model", finding.problem, where=finding.where)


def _table(report: ParityReport, *, title: str) -> Table:
    """Show the figures and the rows that differ most."""
    verdict = "agrees" if report.passed else "DOES NOT AGREE"
    table = Table(title=f"{title}: {verdict} with its source")
    table.add_column("measure")
    table.add_column("value", justify="right")
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.kinds.items())
    levels = {f"|Δp| at {level}": value for level, value in report.quantiles.items()}
    figures = {
        "|Δp| max": report.max_delta,
        "|Δp| mean": report.mean_delta or 0.0,
        **levels,
        "alone, batched, shuffled": report.batch_delta,
        "tolerance allowed": report.tolerance,
        "tolerance that would pass": report.would_pass,
    }
    table.add_row("runtime", report.runtime)
    table.add_row("rows", f"{report.rows:,} ({kinds})")
    table.add_row("rows the source refuses", f"{report.unanswered:,}")
    cuts = ", ".join(f"{one:g}" for one in report.thresholds)
    table.add_row(f"flips at {cuts}", f"{report.flips:,}")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3g}")
    for one in report.worst:
        table.add_row(
            f"worst: {one.kind} row {one.row}, class {one.label}",
            f"{one.source:.9g} → {one.converted:.9g}",
        )
    return table

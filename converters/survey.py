"""
Convert a folder of models that other people trained; print each result as Markdown.

    python -m converters.survey ../shared/data/models [--trust-pickle] [--target 26.07]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32, F64, Facts
from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.opening import open_source
from tollgate.errors import ConversionError, SetupError, TollgateError
from tollgate.repository.models.artifact_file import ParityReport
from tollgate.repository.models.targets import OURS, target

THRESHOLDS = (0.1, 0.5, 0.9)
MODEL_SUFFIXES = (".model", ".bst", ".onnx", ".cbm", ".joblib", ".pkl", ".dat", ".json")
# LightGBM texts with the same suffix as the data next to them.
TEXT_MODELS = ("lg_breast_cancer.txt", "model_simple.txt", "toy_categorical_model.txt")
# Model -> rows, and the answers that its framework gave for them when it was
# saved.
EXPECTED = {
    "lg_dart_breast_cancer.model": (
        "breast_cancer_test.tsv",
        "lg_dart_breast_cancer_true_predictions.txt",
    ),
    "lgmulticlass.model": ("multiclass_test.tsv", "lgmulticlass_true_predictions.txt"),
    "lg_kddcup99.model": ("kddcup99_test.tsv", "lg_kddcup99_true_predictions.txt"),
    **{
        f"{name}.model": (f"{name}_features.tsv", f"{name}_true_predictions.txt")
        for name in (
            "genlin_fmtp_gamma_AvgClaimAmount",
            "genlin_fmtp_poisson_Frequency",
            "genlin_fmtp_tweedie_PurePremium",
        )
    },
}


class Row(msgspec.Struct, frozen=True):
    """
    Result for one file.

    Attributes:
        file: Its path inside the folder.
        framework: Framework that wrote it, if that could be read.
        outcome: Converted with figures, or refused with the reason.
        converted: True if the converted model predicts as its source.
        expected_delta: Largest difference from the predictions in the same folder, of a
            number for its size; None without.
        elsewhere: Figures in the onnxruntime of each other requested release.
    """

    file: str
    framework: str
    outcome: str
    converted: bool
    expected_delta: float | None = None
    elsewhere: tuple[ParityReport, ...] = ()


def survey(
    folder: Path, *, trust_pickle: bool = False, targets: Sequence[str] = ()
) -> Iterator[Row]:
    """
    Convert every model below a folder.

    Args:
        targets: Triton releases in whose onnxruntime each model is proven too.

    Raises:
        SetupError: A target's environment cannot be created here.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix in MODEL_SUFFIXES or path.name in TEXT_MODELS:
            yield _row(path, folder=folder, trust_pickle=trust_pickle, targets=targets)


def _row(
    path: Path, *, folder: Path, trust_pickle: bool, targets: Sequence[str]
) -> Row:
    name = str(path.relative_to(folder))
    expected_files = EXPECTED.get(path.name)
    samples = None
    if expected_files is not None:
        samples = read_rows(path.parent / expected_files[0])
    framework = ""
    try:
        with open_source(path, trust_pickle=trust_pickle) as source:
            facts = source.facts
            framework = f"{facts.framework}, {facts.objective}"
            if samples is not None:
                samples = samples[:, -facts.columns :]  # some tables start with a label
            if facts.anomaly is not None:
                raise ConversionError(
                    "is an outlier detector, which rows of normal behaviour calibrate: "
                    "tollgate convert --calibration"
                )
            proven = prove(
                source,
                samples=samples,
                thresholds=() if facts.number else THRESHOLDS,
                targets=targets,
            )
            own = None if samples is None else source.predict(samples)
        proven.report.check()
    except SetupError:
        raise
    except TollgateError as error:
        reason = str(error).replace(f"{path}: ", "").replace("|", "/")
        return Row(name, framework, f"refused: {reason}", False)
    report = proven.report
    outcome = f"converted: {_figures(report)}"
    delta = None
    if expected_files is not None and samples is not None and own is not None:
        written = read_rows(path.parent / expected_files[1])
        expected = written.astype(np.float64)
        if not facts.number:
            expected = _probabilities(written)
        found = onnx_runner(proven.model)(samples).astype(np.float64)
        delta, apart = (
            float((np.abs(one - expected) / _sizes(expected, facts)).max())
            for one in (found, own)
        )
        outcome += (
            f"; {len(samples)} predictions of its author: max {delta:.1e}, where its "
            f"own framework on the same float32 rows is off by "
            f"{apart:.1e}"
        )
    return Row(name, framework, outcome, True, delta, proven.reports[1:])


def _sizes(expected: F64, facts: Facts) -> F64:
    """Return what differences are divided by: 1 for probabilities."""
    found: F64 = np.abs(expected) if facts.number else np.ones_like(expected)
    return found


def _figures(report: ParityReport) -> str:
    text = f"max {report.max_delta:.1e}, {report.flips} flips"
    return text if report.passed else f"differs: {text}"


def _probabilities(written: F32) -> F64:
    """Read P(1), a probability per class, or margins, some of which are negative."""
    values = written.astype(np.float64)
    if values.shape[1] == 1:
        return np.concatenate([1 - values, values], axis=1)
    if (values >= 0).all():
        return values
    power = np.exp(values - values.max(axis=1, keepdims=True))
    found: F64 = power / power.sum(axis=1, keepdims=True)
    return found


def read_rows(path: Path) -> F32:
    """Read a table of numbers, separated by tabs, commas or blanks; empty is NaN."""
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    mark = "\t" if "\t" in lines[0] else "," if "," in lines[0] else None
    cells = [line.split(mark) for line in lines]
    table: npt.NDArray[np.float64] = np.array(
        [[float(cell) if cell.strip() else np.nan for cell in row] for row in cells]
    )
    rows: F32 = table.astype(np.float32)
    return rows


def table(rows: list[Row], *, targets: Sequence[str] = ()) -> str:
    """Write the rows as a Markdown table, with a column per target."""
    heads = ["file", "framework", "outcome", *(f"in {name}" for name in targets)]
    lines = [_line(heads), "|" + "---|" * len(heads)]
    for one in rows:
        figures = [_figures(report) for report in one.elsewhere]
        figures += [""] * (len(targets) - len(figures))
        lines.append(_line([f"`{one.file}`", one.framework, one.outcome, *figures]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description="Convert a folder of models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trust-pickle", action="store_true")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        help="prove each in this Triton release too",
    )
    chosen = parser.parse_args()
    try:
        names = [target(name).release for name in dict.fromkeys(chosen.target)]
        names = [name for name in names if name != OURS.release]
        rows = survey(chosen.folder, trust_pickle=chosen.trust_pickle, targets=names)
        print(table(list(rows), targets=names))
    except TollgateError as error:
        parser.exit(error.exit_status, f"{error}\n")


if __name__ == "__main__":
    main()

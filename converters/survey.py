"""
Convert a folder of models made by others, and print what came of each as Markdown.

    python -m converters.survey ../shared/data/models [--trust-pickle]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32, F64
from converters.proof import prove
from converters.runner import onnx_runner
from converters.sources.opening import open_source
from tollgate.errors import TollgateError

THRESHOLDS = (0.1, 0.5, 0.9)
MODEL_SUFFIXES = (".model", ".bst", ".onnx", ".cbm", ".joblib", ".pkl", ".dat", ".json")
# LightGBM's texts beside data of the same suffix.
TEXT_MODELS = ("lg_breast_cancer.txt", "model_simple.txt", "toy_categorical_model.txt")
# Model -> rows and the probabilities that its framework gave for them at the time.
EXPECTED = {
    "lg_dart_breast_cancer.model": (
        "breast_cancer_test.tsv",
        "lg_dart_breast_cancer_true_predictions.txt",
    ),
    "lgmulticlass.model": ("multiclass_test.tsv", "lgmulticlass_true_predictions.txt"),
    "lg_kddcup99.model": ("kddcup99_test.tsv", "lg_kddcup99_true_predictions.txt"),
}


class Row(msgspec.Struct, frozen=True):
    """
    What came of one file.

    Attributes:
        file: Its path inside the folder.
        framework: What wrote it, where that could be read.
        outcome: Converted with figures, or refused and why.
        converted: Whether the converted model answers as its source.
        expected_delta: Largest |Δp| to the predictions beside it; None without.
    """

    file: str
    framework: str
    outcome: str
    converted: bool
    expected_delta: float | None = None


def survey(folder: Path, *, trust_pickle: bool = False) -> Iterator[Row]:
    """Convert every model below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in MODEL_SUFFIXES or path.name in TEXT_MODELS:
            yield _row(path, folder=folder, trust_pickle=trust_pickle)


def _row(path: Path, *, folder: Path, trust_pickle: bool) -> Row:
    name = str(path.relative_to(folder))
    beside = EXPECTED.get(path.name)
    samples = None if beside is None else read_rows(path.parent / beside[0])
    framework = ""
    try:
        with open_source(path, trust_pickle=trust_pickle) as source:
            facts = source.facts
            framework = f"{facts.framework}, {facts.objective}"
            if samples is not None:
                samples = samples[:, -facts.columns :]  # some tables begin with a label
            proven = prove(source, samples=samples, thresholds=THRESHOLDS)
            own = None if samples is None else source.predict(samples)
        proven.report.check()
    except TollgateError as error:
        reason = str(error).replace(f"{path}: ", "").replace("|", "/")
        return Row(name, framework, f"refused: {reason}", False)
    report = proven.report
    outcome = f"converted: max {report.max_delta:.1e}, {report.flips} flips"
    delta = None
    if beside is not None and samples is not None and own is not None:
        expected = _probabilities(read_rows(path.parent / beside[1]))
        found = onnx_runner(proven.model)(samples).astype(np.float64)
        delta = float(np.abs(found - expected).max())
        outcome += (
            f"; {len(samples)} predictions beside it: max {delta:.1e}, where its own "
            f"framework on the same float32 rows is off by "
            f"{np.abs(own - expected).max():.1e}"
        )
    return Row(name, framework, outcome, True, delta)


def _probabilities(written: F32) -> F64:
    """Read P(1), a probability per class, or margins of which some are negative."""
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


def table(rows: list[Row]) -> str:
    """Write the rows as a Markdown table."""
    lines = ["| file | framework | outcome |", "|---|---|---|"]
    lines += [f"| `{one.file}` | {one.framework} | {one.outcome} |" for one in rows]
    return "\n".join(lines)


def main() -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description="Convert a folder of models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trust-pickle", action="store_true")
    chosen = parser.parse_args()
    print(table(list(survey(chosen.folder, trust_pickle=chosen.trust_pickle))))


if __name__ == "__main__":
    main()

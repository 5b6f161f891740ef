"""Compare a converted model with its source and its author's figures on raw rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from converters.model import F64, TrainedModel
from converters.parity.parity import differences, usual_size
from converters.parity.runner import onnx_runner
from converters.sample import Sample
from tollgate.errors import InputError, ParityError
from tollgate.history import read_table
from tollgate.repository.hashes import hash_file
from tollgate.repository.models.artifact_file import TOLERANCE, Apart, Oracle, RowsFile
from tollgate.schema import MAX_BATCH_ROWS

_TEXTS = (".csv", ".tsv", ".txt")
_MOST_ROWS = 100_000  # of a sample, evenly spaced


def oracle_of(
    source: TrainedModel,
    model: bytes,
    *,
    sample: Sample | None,
    expected: Path | None,
    from_file: bool,
) -> Oracle:
    """
    Record the reference a converted model was proven against, and its distance from it.

    Args:
        sample: Rows supplied by the user; None without.
        expected: File with the author's predictions for the sample's rows.
        from_file: True if the source was read from a file.

    Raises:
        InputError: The expected predictions cannot be read or belong to other rows.
        ParityError: The converted model's predictions differ from the expected ones.
    """
    facts = source.facts
    oracle = Oracle(
        source=f"{facts.framework} {facts.version}",
        tolerance=TOLERANCE,
        shared_reader=from_file and expected is None,
    )
    if sample is None:
        if expected is not None:
            problem = "has the answers to the rows of a sample, and there is no sample"
            raise InputError(expected, problem)
        return oracle
    at = np.linspace(0, len(sample.rows) - 1, min(len(sample.rows), _MOST_ROWS))
    chosen = at.astype(int) if expected is None else np.arange(len(sample.rows))
    runner = onnx_runner(model)
    wide = runner.wide and sample.raw is not None
    served = sample.raw if wide and sample.raw is not None else sample.rows
    answered = runner.batched(served[chosen], size=MAX_BATCH_ROWS)
    found: F64 = answered.astype(np.float64)
    path = Path(sample.source)
    changes: dict[str, object] = {}
    unit = usual_size(found) if facts.number else None
    if sample.raw is not None:
        answers = source.predict(sample.raw[chosen])
        # Leave out rows that the source refuses: they have no prediction to compare
        # with.
        known = ~np.isnan(answers).any(axis=1)
        if known.any():
            changes["raw_apart"] = apart(
                answers[known], found[known], places=chosen[known], unit=unit
            )
        if path.is_file():
            changes["raw"] = RowsFile(path.name, hash_file(path), int(known.sum()))
    if expected is not None:
        wanted = read_expected(expected, rows=len(found), classes=found.shape[1])
        seen = apart(wanted, found, places=chosen, unit=unit)
        if seen.rows:
            raise ParityError(
                f"{expected}: row {seen.first} of {len(found):,}: {seen.wanted:.9g} "
                f"is expected, the converted model answers {seen.found:.9g}; "
                f"{seen.rows:,} rows differ by more than {TOLERANCE:g}"
            )
        changes["expected"] = RowsFile(expected.name, hash_file(expected), len(found))
        changes["expected_apart"] = seen
    return msgspec.structs.replace(oracle, **changes)


def apart(
    wanted: F64,
    found: F64,
    *,
    places: npt.NDArray[np.intp],
    unit: float | None = None,
) -> Apart:
    """
    Compare answers; NaN counts as a difference.

    Args:
        wanted: Probabilities of the source or the author; float64 [N, K], N >= 1.
        found: Probabilities of the converted model; float64 [N, K].
        places: Positions of the rows in their file, from 0; int [N].
        unit: Usual size of a number; None for probabilities.
    """
    if unit is None:
        each = np.abs(wanted - found)
        each[~np.isfinite(found)] = np.inf
    else:
        each = differences(wanted, found, unit=unit)
    delta = each.max(axis=1)
    over = np.flatnonzero(~(delta <= TOLERANCE))
    if not len(over):
        return Apart(max_delta=float(delta.max()))
    row = int(over[0])
    two = wanted.shape[1] == 2
    label = 1 if two else int(each[row].argmax())
    return Apart(
        max_delta=float(delta.max()),
        rows=len(over),
        first=int(places[row]) + 1,
        wanted=float(wanted[row, label]),
        found=float(found[row, label]),
    )


def read_expected(path: Path, *, rows: int, classes: int) -> F64:
    """
    Read the predictions that a model's author supplied.

    The file has a line for each row of the sample, in its order: the probability of the
    second of two classes, a probability for each class in the model's order, or the
    number that the model answers. A header line is skipped. The format is CSV, TSV,
    text separated by spaces, Parquet or JSON lines.

    Returns:
        float64 [N, K].

    Raises:
        InputError: The file cannot be read, holds no probabilities, or belongs to other
            rows.
    """
    found = _numbers(path)
    if len(found) != rows:
        problem = f"has {len(found):,} rows, the sample has {rows:,}"
        raise InputError(path, problem)
    if found.shape[1] == 1 and classes == 2:
        found = np.hstack([1 - found, found])
    if found.shape[1] != classes:
        problem = f"has {found.shape[1]} numbers a row, the model has {classes} classes"
        raise InputError(path, problem)
    valid = np.isfinite(found) if classes == 1 else (found >= 0) & (found <= 1)
    wrong = ~valid.all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        shown = ", ".join(f"{one:g}" for one in found[row])
        problem = f"{shown}: no probabilities; margins need their sigmoid or softmax"
        if classes == 1:
            problem = f"{shown}: no finite number"
        raise InputError(path, problem, where=f"row {row + 1}")
    return found


def _numbers(path: Path) -> F64:
    if path.suffix not in _TEXTS:
        frame = read_table(path)
        try:
            table = frame.cast(pl.Float64).to_numpy()
        except pl.exceptions.PolarsError as error:
            raise InputError(path, str(error).splitlines()[0]) from error
        return np.asarray(table, np.float64)
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "is not UTF-8"
        raise InputError(path, f"cannot be read: {words}") from error
    cells = [one.replace(",", " ").replace(";", " ").split() for one in lines]
    cells = [one for one in cells if one]
    if cells and _parsed(cells[0]) is None:
        cells = cells[1:]
    numbers: list[list[float]] = []
    for row, one in enumerate(cells, start=1):
        parsed = _parsed(one)
        if parsed is None or len(one) != len(cells[0]):
            problem = f"{' '.join(one)[:60]!r} is not {len(cells[0])} numbers"
            raise InputError(path, problem, where=f"row {row}")
        numbers.append(parsed)
    if not numbers:
        raise InputError(path, "holds no rows")
    return np.array(numbers)


def _parsed(cells: list[str]) -> list[float] | None:
    try:
        return [float(one) for one in cells]
    except ValueError:
        return None

"""Read the rows on which a model is proven and evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from converters.model import F32, F64
from tollgate.errors import InputError
from tollgate.history import read_table

_TRUTH = {"true": "1", "false": "0"}
MOST_SEGMENTS = 50  # distinct texts of one column that a report can show


class Sample(msgspec.Struct, frozen=True, eq=False):
    """
    Rows that a user supplied.

    Attributes:
        rows: Features as served; float32 [N, F].
        raw: The rows as the file has them; float64 [N, F], None if it has none.
        source: The file, or another name for messages.
        label: True outcome of each row, as written in the file; [N] or None.
        label_name: Column of the labels; empty without.
        segments: Column -> value of each row, as text.
        sensitive: Names of segments that must not influence a decision; no features.
        origin: `training` for exactly the rows that a model was trained on; `held out`
            for rows excluded from training; `sample` for rows whose role in training is
            unknown.
        described: Description of the rows; empty for the one that the origin gives.
        comparison: Text that says how simple models rank the rows; empty if that was
            not measured.
    """

    rows: F32
    names: tuple[str, ...]
    source: str = "sample"
    label: tuple[object, ...] | None = None
    label_name: str = ""
    segments: Mapping[str, tuple[str, ...]] = {}
    sensitive: tuple[str, ...] = ()
    origin: Literal["training", "held out", "sample"] = "sample"
    raw: F64 | None = None
    described: str = ""
    comparison: str = ""

    @property
    def note(self) -> str:
        """Return the description of the rows, and how simple models rank them."""
        return self._origin + (f"; {self.comparison}" if self.comparison else "")

    @property
    def _origin(self) -> str:
        if self.described:
            return self.described
        if self.origin == "training":
            return "the rows that the model was trained on"
        if self.origin == "held out":
            return "rows that were kept back when the model was trained"
        return (
            f"rows of {Path(self.source).name}, handed in with the model; whether it "
            "was trained on them is not known"
        )

    def take(self, rows: npt.NDArray[np.int64]) -> Sample:
        """Return the rows at some positions."""
        return msgspec.structs.replace(
            self,
            rows=self.rows[rows],
            raw=None if self.raw is None else self.raw[rows],
            label=None if self.label is None else tuple(self.label[at] for at in rows),
            segments={
                name: tuple(values[at] for at in rows)
                for name, values in self.segments.items()
            },
        )

    def classes(self, known: Sequence[int | str]) -> npt.NDArray[np.int64] | None:
        """
        Return each row's class as a position among the model's; int64 [N].

        Raises:
            InputError: A label is none of the model's classes.
        """
        if self.label is None:
            return None
        position = {_label_key(name): at for at, name in enumerate(known)}
        found = np.empty(len(self.label), dtype=np.int64)
        for row, value in enumerate(self.label):
            at = position.get(_label_key(value))
            if at is None:
                raise InputError(
                    self.source,
                    f"{value!r} is none of the model's classes {list(known)}",
                    where=f"row {row + 1}, column {self.label_name!r}",
                )
            found[row] = at
        return found


def read_sample(
    path: Path,
    *,
    names: tuple[str, ...] | None,
    label: str | None = None,
    segments: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    columns: int | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
) -> Sample:
    """
    Read feature rows from Parquet, CSV or JSON lines; an empty number is NaN.

    Args:
        names: Columns to take, in order; None takes every column of numbers that is
            neither label nor segment.
        label: Column with each row's true outcome.
        segments: Columns whose values divide the report; a feature may be one.
        sensitive: Columns like segments, for attributes that must not influence a
            decision; they are never features.
        columns: Number of features, if their names are unknown. Segments of numbers are
            features only if exactly this many columns hold numbers, segments included.
        words: Column -> its words in the order of their codes. A word becomes its code,
            an unknown word -2 and a missing one -1.

    Raises:
        InputError: It cannot be read, is empty, lacks a column, or holds a text where
            a number belongs; rows count from 1.
    """
    frame = read_table(path)
    asked = [*segments, *sensitive, *((label,) if label is not None else ())]
    if names is None:
        names = _feature_names(
            path,
            frame.drop(sensitive, strict=False),
            label=label,
            segments=segments,
            columns=columns,
        )
    for name in (*names, *asked):
        if name not in frame.columns:
            raise InputError(
                path, f"lacks the column; it has {frame.columns}"[:300], where=name
            )
    for name in (*((label,) if label is not None else ()), *sensitive):
        if name in names:
            raise InputError(path, "is a feature of the model", where=name)
    if not len(frame) or not names:
        raise InputError(path, "holds no rows of numbers")
    coded = words or {}
    raw = np.stack(
        [
            _codes(frame[name], coded[name])
            if _holds_words(frame[name], coded.get(name, ()))
            else _numbers(path, frame[name])
            for name in names
        ],
        axis=1,
    )
    with np.errstate(over="ignore"):
        served = np.ascontiguousarray(raw, np.float32)
    return Sample(
        rows=served,
        raw=raw,
        names=names,
        source=str(path),
        label=None if label is None else _labels(path, frame[label]),
        label_name=label or "",
        segments={
            name: _segment(path, frame[name]) for name in (*segments, *sensitive)
        },
        sensitive=tuple(sensitive),
    )


def _feature_names(
    path: Path,
    frame: pl.DataFrame,
    *,
    label: str | None,
    segments: Sequence[str],
    columns: int | None,
) -> tuple[str, ...]:
    """Choose the columns of numbers as features; segments only if they are needed."""
    found = tuple(
        name for name in frame.columns if name != label and _numeric(path, frame[name])
    )
    apart = tuple(name for name in found if name not in segments)
    return found if len(apart) != columns == len(found) else apart


def _numeric(path: Path, column: pl.Series) -> bool:
    """Return whether a column holds numbers; in CSV by its first value."""
    if column.dtype != pl.String:
        return column.dtype.is_numeric() or column.dtype == pl.Boolean
    first = column.drop_nulls().head(1)
    return path.suffix == ".csv" and bool(
        len(first) == 0 or first.cast(pl.Float64, strict=False).is_not_null().all()
    )


def _numbers(path: Path, column: pl.Series) -> npt.NDArray[np.float64]:
    """Return float64 [N], NaN for an empty value."""
    number = column.dtype.is_numeric() or column.dtype == pl.Boolean
    if not number and column.dtype not in (pl.String, pl.Null):
        raise InputError(path, f"is {column.dtype}, not a number", where=column.name)
    found = column.cast(pl.Float64, strict=False)
    wrong = (found.is_null() & column.is_not_null()).arg_true()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            path,
            f"{column[row]!r} is not a number, and served features are: encode texts "
            "as codes and train on those",
            where=f"row {row + 1}, column {column.name!r}",
        )
    numbers: npt.NDArray[np.float64] = found.fill_null(float("nan")).to_numpy()
    return numbers


def _holds_words(column: pl.Series, words: Sequence[str]) -> bool:
    """Return whether a column holds words, where codes are possible too."""
    if not words or column.dtype not in (pl.String, pl.Categorical, pl.Enum):
        return False
    texts = column.cast(pl.String).drop_nulls()
    numbers = texts.cast(pl.Float64, strict=False).is_not_null().all()
    return not numbers or bool(texts.is_in(list(words)).any())


def _codes(column: pl.Series, words: Sequence[str]) -> npt.NDArray[np.float64]:
    """Convert words to the codes that features.yaml gives them; float64 [N]."""
    code = {word: float(at) for at, word in enumerate(words)}
    texts = column.cast(pl.String).to_list()
    return np.array([code.get(one, -2.0) if one else -1.0 for one in texts])


def _labels(path: Path, column: pl.Series) -> tuple[object, ...]:
    empty = column.is_null().arg_true()
    if len(empty):
        raise InputError(
            path, "has no label", where=f"row {empty[0] + 1}, column {column.name!r}"
        )
    return tuple(column.to_list())


def _segment(path: Path, column: pl.Series) -> tuple[str, ...]:
    """Return each row's value as text, empty without one; refuse too many texts."""
    if column.dtype.is_nested():
        raise InputError(path, f"is {column.dtype}, not a value", where=column.name)
    count = column.n_unique()
    number = column.cast(pl.String, strict=False).cast(pl.Float64, strict=False)
    all_numbers = not (number.is_null() & column.is_not_null()).any()
    if count > MOST_SEGMENTS and not all_numbers:
        raise InputError(
            path,
            f"has {count:,} different values, not all numbers; at most "
            f"{MOST_SEGMENTS} texts make segments",
            where=column.name,
        )
    gap = column.is_null() | (number.is_nan().fill_null(False) & all_numbers)
    return tuple(
        "" if missing else str(one)
        for one, missing in zip(column.to_list(), gap.to_list(), strict=True)
    )


def _label_key(value: object) -> str:
    """Normalise a label so that 1, 1.0, true and the text "1" are one class."""
    text = str(value)
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    whole, mark, fraction = text.partition(".")
    return whole if mark and not fraction.strip("0") else text

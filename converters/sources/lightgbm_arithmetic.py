"""
Recompute the output of a LightGBM text, and compare lightgbm's output with it.

The code shares nothing with lightgbm and nothing with the converter. So it detects a
library that ignores or misreads a key of the text, before that library serves as the
source of a proof.
"""

from __future__ import annotations

import lightgbm
import numpy as np

from converters.model import F32, F64
from converters.sources.lightgbm_file import TextModel
from tollgate.errors import ConversionError

ROWS = 256
_SLACK = 1e-9  # relative to the sum of all leaves
_MISSING_SHARE = 0.1


def text_sums(model: TextModel, rows: F32) -> F64:
    """Return the sums of the rows' leaves, [N, K]; NaN is a missing value."""
    found = np.zeros((len(rows), model.outputs))
    for number, tree in enumerate(model.trees):
        found[:, number % model.outputs] += tree.leaf_value[tree.leaves(rows)]
    return found


def text_probabilities(model: TextModel, sums: F64) -> F64:
    """Return P(class 1), [N, 1], or a probability of each class, [N, K]."""
    rounds = len(model.trees) // model.outputs
    margins = model.sigmoid * (sums / rounds if model.averaged else sums)
    if model.outputs == 1:
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-margins)))
    power = np.exp(margins - margins.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def require_agreement(booster: lightgbm.Booster, model: TextModel) -> None:
    """
    Compare lightgbm's predictions with the text's own on rows around its thresholds.

    Args:
        booster: Model as lightgbm read it.
        model: Model as our reader read it.

    Raises:
        ConversionError: They differ: lightgbm misreads the text.
    """
    rows = _rows(model)
    sums = text_sums(model, rows)
    size = 1.0 + sum(float(np.abs(tree.leaf_value).max()) for tree in model.trees)
    for raw, expected, scale in (
        (True, sums, size),  # lightgbm does not divide its raw scores
        (False, text_probabilities(model, sums), 1.0),
    ):
        found = np.asarray(
            booster.predict(rows, raw_score=raw, num_threads=1), np.float64
        ).reshape(len(rows), -1)
        if found.shape != expected.shape or not (
            np.abs(found - expected).max() <= _SLACK * scale
        ):
            raise ConversionError(
                f"lightgbm {lightgbm.__version__} answers otherwise than the numbers "
                "in the file say: install the version that wrote it, or export it to "
                "ONNX there and adopt that"
            )


def _rows(model: TextModel) -> F32:
    """
    Draw each column from its thresholds, values just below them, its codes, 0 and NaN.
    """
    random = np.random.default_rng(0)
    rows = random.normal(size=(ROWS, model.columns)).astype(np.float32)
    values: dict[int, list[F32]] = {}
    for tree in model.trees:
        for node, column in enumerate(tree.feature):
            codes = tree.codes.get(node)
            if codes is None:
                with np.errstate(over="ignore"):
                    on = np.float32(tree.threshold[node])
                both = np.asarray([on, np.nextafter(on, np.float32(-np.inf)), 0])
            else:
                both = np.arange(max(codes, default=0) + 2)[-1000:]
            values.setdefault(int(column), []).append(both.astype(np.float32))
    for column, found in values.items():
        rows[:, column] = random.choice(np.concatenate(found), ROWS)
    rows[random.random(rows.shape) < _MISSING_SHARE] = np.nan
    return rows

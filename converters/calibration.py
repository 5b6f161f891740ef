"""
Turn the raw score of an outlier detector into a false-alarm probability.

The answer is 1 - P(a normal row scores at least as high). The probability comes from
rows of normal behaviour. Between knots of these rows its logarithm is a straight line
over the raw score (over the logarithm of an error or a distance). Beyond the highest
row the line falls as the highest tenth of the rows falls, for one factor of ten; more
than that the rows do not say. It reaches another factor of ten less at the highest
score that is possible, so that extreme rows keep their order in float32.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.model import F32, F64, AnomalyScore, Facts, Floats, Probes, TrainedModel
from converters.onnx.graph import RAW_SCORE, set_shape
from tollgate.errors import ArgumentError, ConversionError
from tollgate.explanation import Explanation
from tollgate.repository.models.artifact_file import Calibration
from tollgate.schema import PROBABILITIES

LEAST_ROWS = 100
MOST_ROWS = 100_000  # the part beyond the highest row needs more than 2**-23
_TAIL_SHARE = 0.1
_TAIL_FACTOR = 10.0
_LAST = 2.0**-23  # 1 - 2**-23 is the second largest float32 below 1
# False-alarm probabilities of the knots: even ones, and twelve for each power of ten.
_LEVELS = np.concatenate([np.linspace(1, 0.1, 37), 10 ** -np.arange(1, 5.01, 1 / 12)])


def fit_calibration(scores: F64, *, form: AnomalyScore, rows: str) -> Calibration:
    """
    Fit the probability that a normal row scores at least as high.

    Args:
        scores: Raw scores of at most `MOST_ROWS` normal rows; float64 [N]; NaN where
            the detector refused.
        form: Form of the raw score.
        rows: Description of the rows for the record.

    Raises:
        ArgumentError: The rows are too few, or all have one score.
    """
    known = np.sort(scores[~np.isnan(scores)])
    if len(known) < LEAST_ROWS:
        problem = (
            f"{rows}: {len(known)} rows have a score; at least {LEAST_ROWS} rows of "
            "normal behaviour are needed"
        )
        raise ArgumentError("calibration", problem)
    place = on_scale(np.clip(known, None, form.most), form.scale)
    usual = place[np.isfinite(place)]
    if not len(usual) or usual[0] == usual[-1]:
        problem = f"{rows}: all rows have the raw score {known[-1]:.6g}"
        raise ArgumentError("calibration", problem)
    place = np.maximum(place, usual[0])  # an error of 0 has no logarithm
    count = len(place)
    # The rank of a new row among these: never 0, however high it scores.
    alarm = (count - np.arange(count)) / (count + 1)
    at = np.unique([int(np.argmin(np.abs(alarm - one))) for one in _LEVELS])
    at = np.unique([*at, count - 1])
    knots = np.unique(place[at])
    # Rows with the same score all count as at least as high: take the first of them.
    lowest = np.searchsorted(place, knots)
    levels = np.log(alarm[lowest])
    levels[0] = 0.0
    knots, levels = _with_tail(knots, levels, place=place, form=form)
    return Calibration(
        scale=form.scale,
        scores=tuple(knots.tolist()),
        false_alarms=tuple(np.exp(levels).tolist()),
        rows=count,
        source=rows,
    )


def _with_tail(
    knots: F64, levels: F64, *, place: F64, form: AnomalyScore
) -> tuple[F64, F64]:
    """Add the knots beyond the highest row."""
    end = float(on_scale(np.asarray([form.most]), form.scale)[0])
    top, level = float(knots[-1]), float(levels[-1])
    if top >= end:
        return knots, levels
    tail = place[-max(2, int(len(place) * _TAIL_SHARE)) :]
    excess = float(np.mean(tail - tail[0]))
    fall = float(np.log(_TAIL_FACTOR))
    far = top + excess * fall
    # A score with an upper limit leaves room for the last part.
    far = min(far, (top + end) / 2)
    if far <= top:
        return np.append(knots, end), np.append(levels, level - fall)
    last = max(level - 2 * fall, float(np.log(_LAST)))
    return np.append(knots, [far, end]), np.append(levels, [level - fall, last])


def on_scale(scores: Floats, scale: str) -> F64:
    """Return raw scores on the scale of the knots."""
    if scale == "linear":
        return np.asarray(scores, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.asarray(scores, np.float64)))


def calibrated(scores: F64, calibration: Calibration) -> F64:
    """Return P(a normal row scores as high) and 1 - that, of raw scores; [N, 2]."""
    alarm = np.exp(
        np.interp(
            on_scale(scores, calibration.scale),
            calibration.scores,
            np.log(calibration.false_alarms),
        )
    )
    return np.stack([alarm, 1 - alarm], axis=1)


class CalibratedDetector:
    """
    A `TrainedModel` of two classes: normal rows, and anomalies.

    Args:
        model: A detector that answers its raw score.
        calibration: Fitted to rows of normal behaviour.
    """

    def __init__(self, model: TrainedModel, calibration: Calibration) -> None:
        self._model = model
        self.calibration = calibration

    @property
    def facts(self) -> Facts:
        return msgspec.structs.replace(self._model.facts, classes=(0, 1), anomaly=None)

    def predict(self, rows: Floats) -> F64:
        return calibrated(self._model.predict(rows)[:, 0], self.calibration)

    def convert(self, *, wide: bool = False) -> bytes:
        return with_calibration(self._model.convert(wide=wide), self.calibration)

    def probes(self, samples: F32 | None) -> Probes:
        return self._model.probes(samples)

    def explanation(self) -> Explanation:
        found = self._model.explanation()
        return msgspec.structs.replace(found, classes=(0, 1))

    def pruned(self, *, trees: int | None, depth: int | None) -> CalibratedDetector:
        """Raise ConversionError: without its trees, other rows would be normal."""
        raise ConversionError(
            "an outlier detector is not pruned: train one with fewer trees"
        )


def with_calibration(model: bytes, calibration: Calibration) -> bytes:
    """Add the calibration to a graph of raw scores; it then gives probabilities."""
    loaded = onnx.load_from_string(model)
    graph = loaded.graph
    knots = np.asarray(calibration.scores)
    levels = np.log(calibration.false_alarms)
    write = _Writer(graph)
    last = RAW_SCORE
    if calibration.scale == "log":
        last = write.add("Log", last)
    # Comparisons with NaN are false, so NaN passes through.
    low, high = write.constant(knots[:1]), write.constant(knots[-1:])
    last = write.add("Where", write.add("Less", last, low), low, last)
    last = write.add("Where", write.add("Greater", last, high), high, last)
    # The first knot at or above the score ends its segment.
    reached = write.add("LessOrEqual", last, write.constant(knots[None, 1:]))
    flags = write.add("Cast", reached, to=TensorProto.FLOAT)
    segment = write.add("ArgMax", flags, axis=1, keepdims=1)
    slopes = np.diff(levels) / np.diff(knots)
    start, level, slope = (
        write.add("Gather", write.constant(values), segment, axis=0)
        for values in (knots[:-1], levels[:-1], slopes)
    )
    risen = write.add("Mul", slope, write.add("Sub", last, start))
    alarm = write.add("Exp", write.add("Add", level, risen))
    score = write.add("Sub", write.constant(np.ones(1)), alarm)
    both = write.add("Concat", alarm, score, axis=1)
    graph.node.append(
        helper.make_node("Cast", [both], [PROBABILITIES], to=TensorProto.FLOAT)
    )
    output = graph.output[0]
    output.name = PROBABILITIES
    output.type.tensor_type.elem_type = TensorProto.FLOAT
    set_shape(output.type.tensor_type, columns=2)
    onnx.checker.check_model(loaded)
    return bytes(loaded.SerializeToString(deterministic=True))


class _Writer:
    """Append nodes to a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"calibration_{kind.lower()}_{len(self._graph.node)}"
        node = helper.make_node(kind, inputs, [output], **attributes)
        self._graph.node.append(node)
        return output

    def constant(self, values: Any) -> str:
        name = f"calibration_constant_{len(self._graph.initializer)}"
        array = np.asarray(values, np.float64)
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

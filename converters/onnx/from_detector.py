"""Write an anomaly detector as a graph from features to the score."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from converters.onnx.graph import finish
from tollgate.detection.detector import MOST_SCORE, Curve, Detector
from tollgate.schema import FEATURES, PROBABILITIES

_NO_RAMP = (0.0, 0.0, 0.0)  # fills curves with fewer ramps


def onnx_from_detector(detector: Detector) -> bytes:
    """
    Write the graph that computes what `detector_scores` does.

    Every operator is monotone in float32: the score never falls when a measure grows.

    Returns:
        A serialized graph: `features` float32 [N, F] to `probabilities` float32 [N, 2],
        the second of which is the score; the same detector gives the same bytes.
    """
    measures = [one for sensor in detector.sensors for one in sensor.measures]
    shifts = len(measures[0].shifts)
    curves = [
        curve
        for one in measures
        for curve in (one.record_surprise, *one.shift_surprises)
    ]
    weights = np.tile([1.0] + [1.0 / shifts] * shifts, len(measures))
    graph = _Graph()
    constant, add = graph.constant, graph.add

    def columns(name: str, places: list[int]) -> str:
        index = constant(f"{name}_columns", np.array(places, np.int64))
        return add("Gather", [FEATURES, index], name, axis=1)

    zero = constant("zero", np.float32(0))
    own = columns("own", [one.own for one in measures])
    greatest = columns("greatest", [one.greatest for one in measures])
    least = columns("least", [one.least for one in measures])
    is_high = add("GreaterOrEqual", [own, greatest], "is_high")
    is_low = add("LessOrEqual", [own, least], "is_low")
    is_extreme = add("Or", [is_high, is_low], "is_extreme")
    size = add(
        "Abs", [columns("deviation", [one.deviation for one in measures])], "far"
    )
    records = add("Where", [is_extreme, size, zero], "records")
    moved = columns("moved", [at for one in measures for at in one.shifts])
    sizes = add("Abs", [moved], "shifts")

    # One column per curve: of each sensor and long window the record, then the shifts.
    per_window = constant("per_window", np.array([-1, len(measures), shifts], np.int64))
    one_each = constant("one_each", np.array([-1, len(measures), 1], np.int64))
    parts = [
        add("Reshape", [records, one_each], "records_by_window"),
        add("Reshape", [sizes, per_window], "shifts_by_window"),
    ]
    joined = add("Concat", parts, "measures_by_window", axis=2)
    per_curve = constant("per_curve", np.array([-1, len(curves), 1], np.int64))
    measured = add("Reshape", [joined, per_curve], "measures")
    surprise = graph.ramps("surprise", measured, curves, axis=2)
    weight = constant("weight", weights.astype(np.float32))
    weighted = add("Mul", [surprise, weight], "weighted")
    sensors = len(detector.sensors)
    per_sensor = constant(
        "per_sensor", np.array([-1, sensors, len(curves) // sensors], np.int64)
    )
    grouped = add("Reshape", [weighted, per_sensor], "by_sensor")
    last = constant("last_axis", np.array([2], np.int64))
    of_sensors = add("ReduceSum", [grouped, last], "of_sensors", keepdims=0)
    largest = add("ReduceMax", [of_sensors], "of_machine", axes=[1], keepdims=1)
    rising = graph.ramps("calibrated", largest, [detector.calibration], axis=1)
    whole = constant("column", np.array([-1, 1], np.int64))
    limited = add("Min", [rising, constant("most", MOST_SCORE)], "limited")
    score = add("Reshape", [limited, whole], "calibrated_score")
    readings = columns("readings", [detector.readings])
    fewest = constant("fewest", np.float32(detector.fewest_readings))
    is_known = add("GreaterOrEqual", [readings, fewest], "is_known")
    second = add("Where", [is_known, score, zero], "second")
    first = add("Sub", [constant("one", np.float32(1)), second], "first")
    add("Concat", [first, second], PROBABILITIES, axis=1)
    return finish(
        graph.nodes,
        name="detector",
        columns=len(detector.features),
        classes=2,
        constants=graph.constants,
    )


class _Graph:
    """Nodes and constants of a graph while it is written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, inputs: list[str], output: str, **keys: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], **keys))
        return output

    def ramps(self, name: str, given: str, curves: list[Curve], *, axis: int) -> str:
        """Sum the ramps of curves, along the last axis of the given tensor."""
        found = [np.stack(one.ramps(), axis=1) for one in curves]
        most = max(len(one) for one in found)
        table = np.array(
            [[*one.tolist(), *[_NO_RAMP] * (most - len(one))] for one in found],
            np.float32,
        )
        begin, width, slope = (
            self.constant(f"{name}_{part}", table[:, :, at])
            for at, part in enumerate(("begin", "width", "slope"))
        )
        floor = self.constant(f"{name}_floor", np.float32(0))
        past = self.add("Sub", [given, begin], f"{name}_past")
        risen = self.add("Max", [past, floor], f"{name}_risen")
        inside = self.add("Min", [risen, width], f"{name}_inside")
        gained = self.add("Mul", [inside, slope], f"{name}_gained")
        last = self.constant(f"{name}_axis", np.array([axis], np.int64))
        return self.add("ReduceSum", [gained, last], name, keepdims=0)

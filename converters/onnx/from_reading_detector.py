"""Write an anomaly detector as a graph from features to the score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from converters.onnx.graph import finish
from tollgate.detection.detector import (
    MOST_GAP,
    MOST_SCORE,
    Curve,
    Detector,
    Relation,
)
from tollgate.schema import FEATURES, PROBABILITIES


def onnx_from_reading_detector(detector: Detector) -> bytes:
    """
    Write the graph that computes what `detector_scores` does, in every bit.

    Sums are chains of additions, not reductions: onnxruntime adds the numbers of a
    reduction in an order that depends on the row's position in the batch.

    Returns:
        A serialized graph: `features` float32 [N, F] to `probabilities` float32 [N, 2],
        the second of which is the score; the same detector gives the same bytes.
    """
    graph = _Graph()
    constant, add = graph.constant, graph.add

    def columns(name: str, places: list[int]) -> str:
        index = constant(f"{name}_columns", np.array(places, np.int64))
        return add("Gather", [FEATURES, index], name, axis=1)

    zero = constant("zero", np.float32(0))
    total = ""
    for at in range(len(detector.sensors[0].measures)):
        window = [sensor.measures[at] for sensor in detector.sensors]
        own = columns(f"own_{at}", [one.own for one in window])
        greatest = columns(f"greatest_{at}", [one.greatest for one in window])
        least = columns(f"least_{at}", [one.least for one in window])
        is_high = add("GreaterOrEqual", [own, greatest], f"is_high_{at}")
        is_low = add("LessOrEqual", [own, least], f"is_low_{at}")
        is_extreme = add("Or", [is_high, is_low], f"is_extreme_{at}")
        far = columns(f"deviation_{at}", [one.deviation for one in window])
        size = add("Abs", [far], f"distance_{at}")
        record = add("Where", [is_extreme, size, zero], f"record_{at}")
        curves = [one.record_surprise for one in window]
        found = graph.curves(f"record_surprise_{at}", record, curves)
        total = graph.sum(total, found, name=f"with_record_{at}")
        shifts = len(window[0].shifts)
        share = constant(f"share_{at}", np.float32(1 / shifts))
        for nth in range(shifts):
            name = f"shift_{at}_{nth}"
            mean = columns(f"{name}_mean", [one.means[nth] for one in window])
            known = graph.is_known(f"{name}_is_known", mean, least, greatest)
            shift = columns(f"{name}_whole", [one.shifts[nth] for one in window])
            moved = add("Where", [known, shift, zero], name)
            size = add("Abs", [moved], f"{name}_size")
            curves = [one.shift_surprises[nth] for one in window]
            found = graph.curves(f"{name}_surprise", size, curves)
            part = add("Mul", [found, share], f"{name}_share")
            total = graph.sum(total, part, name=f"with_{name}")
    curves = [one.surprise for one in detector.sensors]
    total = graph.curves("own_surprise", total, curves)
    relations = [one.relation for one in detector.sensors if one.relation is not None]
    if relations:
        explained = np.array([one.explained for one in relations], np.float32)
        left = constant("unexplained", np.float32(1) - explained)
        part = add("Mul", [total, left], "own_part")
        related = _related_surprise(graph, relations, columns=columns)
        share = constant("explained", explained)
        total = add("Add", [part, add("Mul", [related, share], "related_part")], "both")
    largest = add("ReduceMax", [total], "machine_surprise", axes=[1], keepdims=1)
    rising = graph.curves("calibrated", largest, [detector.calibration])
    score = add("Min", [rising, constant("most", MOST_SCORE)], "score")
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


def _related_surprise(
    graph: _Graph,
    relations: Sequence[Relation],
    *,
    columns: Callable[[str, list[int]], str],
) -> str:
    """Write the surprise of each sensor's relation to the others; [N, S]."""
    windows = len(relations[0].residuals)
    shorts = len(relations[0].residuals[0])
    share = graph.constant("residual_share", np.float32(1 / shorts))
    totals = []
    for long in range(windows):
        total = ""
        for short in range(shorts):
            nth = f"{long}_{short}"
            residuals = [one.residuals[long][short] for one in relations]
            weights = np.array([one.weights for one in residuals], np.float32)
            residual = ""
            known = f"shift_{nth}_is_known"
            whole = columns(f"gaps_{nth}_whole", list(residuals[0].columns))
            gaps = graph.add("Where", [known, whole, "zero"], f"gaps_{nth}")
            names = [f"gap_{nth}_{at}" for at in range(len(relations))]
            graph.split(gaps, [f"{name}_known" for name in names])
            for at, name in enumerate(names):
                given = graph.limited(name, f"{name}_known")
                weight = graph.constant(f"{name}_weights", weights[:, at])
                part = graph.add("Mul", [given, weight], f"{name}_part")
                residual = graph.sum(residual, part, name=f"with_{name}")
            size = graph.add("Abs", [residual], f"residual_{nth}")
            curves = [one.surprise for one in residuals]
            found = graph.curves(f"residual_surprise_{nth}", size, curves)
            part = graph.add("Mul", [found, share], f"residual_part_{nth}")
            total = graph.sum(total, part, name=f"with_residual_{nth}")
        totals.append(total)
    least = graph.add("Min", totals, "least_residual_surprise")
    return graph.curves("related", least, [one.surprise for one in relations])


class _Graph:
    """Nodes and constants of a graph while it is written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def is_known(self, name: str, mean: str, least: str, greatest: str) -> str:
        """Return whether short windows have values, as `known_part` does."""
        below = self.add("Less", [mean, least], f"{name}_below")
        above = self.add("Greater", [mean, greatest], f"{name}_above")
        outside = self.add("Or", [below, above], f"{name}_outside")
        is_zero = self.add("Equal", [mean, "zero"], f"{name}_is_zero")
        empty = self.add("And", [is_zero, outside], f"{name}_is_empty")
        return self.add("Not", [empty], name)

    def limited(self, name: str, given: str) -> str:
        least = self.constant(f"{name}_least", -MOST_GAP)
        most = self.constant(f"{name}_most", MOST_GAP)
        return self.add("Clip", [given, least, most], name)

    def add(self, kind: str, inputs: list[str], output: str, **keys: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], **keys))
        return output

    def split(self, given: str, outputs: list[str]) -> None:
        """Split a tensor into its columns."""
        sizes = self.constant(f"{given}_sizes", np.ones(len(outputs), np.int64))
        node = helper.make_node("Split", [given, sizes], outputs, axis=1)
        self.nodes.append(node)

    def sum(self, total: str, part: str, *, name: str) -> str:
        """Add a part to a sum; the first part is the sum."""
        return self.add("Add", [total, part], name) if total else part

    def curves(self, name: str, given: str, curves: Sequence[Curve]) -> str:
        """Apply a curve to each column of a tensor [N, C]; return the result's name."""
        segments = [one.segments().T.tolist() for one in curves]
        most = max(len(one) for one in segments)
        # A curve with fewer segments repeats its last: the largest stays the same.
        table = np.array(
            [[*one, *[one[-1]] * (most - len(one))] for one in segments], np.float32
        )
        begin, width, value, slope = (
            self.constant(f"{name}_{part}", table[:, :, at])
            for at, part in enumerate(("begin", "width", "value", "slope"))
        )
        last = self.constant(f"{name}_axis", np.array([2], np.int64))
        zero = self.constant(f"{name}_zero", np.float32(0))
        column = self.add("Unsqueeze", [given, last], f"{name}_column")
        past = self.add("Sub", [column, begin], f"{name}_past")
        inside = self.add("Min", [past, width], f"{name}_inside")
        gained = self.add("Mul", [inside, slope], f"{name}_gained")
        reached = self.add("Add", [gained, value], f"{name}_reached")
        begun = self.add("GreaterOrEqual", [column, begin], f"{name}_begun")
        counted = self.add("Where", [begun, reached, zero], f"{name}_counted")
        return self.add("ReduceMax", [counted], name, axes=[2], keepdims=0)

"""
Write tree ensembles as plain ONNX operators, for runtimes without tree operators.

There are two strategies: matrix products for shallow trees, whose work doubles twice
with every level; and walking down level by level for deeper trees. Neither rounds a
test: each row takes the same path as in the tree operator, NaN and infinities included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.model import F64
from converters.onnx.graph import drop_unused
from converters.trees.exact_sums import exact_parts
from converters.trees.onnx_trees import OPERATORS, class_labels, trees_from_onnx
from converters.trees.tree_ensemble import (
    AT_MOST,
    EQUAL,
    LEAF,
    LESS,
    Comparisons,
    Flags,
    Ints,
    Tree,
)
from tollgate.errors import ConversionError
from tollgate.repository.models.targets import ML_DOMAIN


class Forest(msgspec.Struct, frozen=True, eq=False):
    """
    The trees of one operator, with consecutive node numbers.

    Attributes:
        roots: First node of each tree; int [T].
        comparison: Comparison at a node, the name of an ONNX operator; LEAF for a leaf;
            str [M].
        feature: Column that a node tests; int [M].
        threshold: Value that a node compares with; float64 [M].
        missing: True if NaN takes the path of a test that holds; bool [M].
        true: Next node if the test holds, a leaf's own number; int [M].
        false: Next node otherwise, a leaf's own number; int [M].
        values: Value that a leaf adds, including the operator's base values; float64
            [M, K].
        level: Number of steps from the root; int [M].
        tree: Number of the node's tree; int [M].
    """

    roots: Ints
    comparison: Comparisons
    feature: Ints
    threshold: F64
    missing: Flags
    true: Ints
    false: Ints
    values: F64
    level: Ints
    tree: Ints

    @property
    def depth(self) -> int:
        """Return the number of steps to the deepest leaf."""
        return int(self.level.max())

    @property
    def leaf(self) -> Flags:
        """Return which nodes are leaves; bool [M]."""
        leaf: Flags = self.true == np.arange(len(self.true))
        return leaf

    @property
    def outputs(self) -> int:
        """Return K, the number of sums of the trees."""
        return int(self.values.shape[1])

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the comparisons in use, the most frequent first; at least one."""
        found, count = np.unique(
            self.comparison[self.comparison != LEAF], return_counts=True
        )
        return tuple(str(found[at]) for at in np.argsort(-count)) or (AT_MOST,)

    @property
    def odd(self) -> Flags:
        """Return the nodes that send NaN another way than minus infinity; bool [M]."""
        lowest = np.full(len(self.threshold), -np.inf)
        holds = np.zeros(len(lowest), dtype=bool)
        for mode in self.modes:
            holds |= (self.comparison == mode) & _test(mode, lowest, self.threshold)
        odd: Flags = self.missing & ~holds
        return odd


def forest_of(trees: Sequence[Tree], *, dtype: type) -> Forest:
    """
    Join trees.

    Args:
        trees: At least one; leaves have a value for each sum.
        dtype: Type of the features; thresholds are rounded to that type, in the
            direction that changes the path of no such number.

    Raises:
        ConversionError: A threshold of an EQUAL test is no number of that type, or
            nodes form a circle.
    """
    sizes = [len(one.left) for one in trees]
    start = np.cumsum([0, *sizes])
    own = np.arange(start[-1])

    def joined(arrays: list[Any]) -> Any:
        return np.concatenate(arrays)

    def children(arrays: list[Ints]) -> Ints:
        child = joined([one + first for one, first in zip(arrays, start, strict=False)])
        found: Ints = np.where(joined(arrays) >= 0, child, own)
        return found

    true = children([one.left for one in trees])
    false = children([one.right for one in trees])
    comparison = joined([one.comparison for one in trees])
    threshold = joined([one.threshold for one in trees])
    return Forest(
        roots=start[:-1],
        comparison=comparison,
        feature=joined([one.feature for one in trees]),
        threshold=_rounded(threshold, comparison, dtype=dtype),
        missing=joined([one.missing_left for one in trees]),
        true=true,
        false=false,
        values=joined([one.value for one in trees]),
        level=_levels(start[:-1], true=true, false=false),
        tree=np.repeat(np.arange(len(sizes)), sizes),
    )


def _levels(roots: Ints, *, true: Ints, false: Ints) -> Ints:
    """
    Count the steps from the root to every node; int [M].

    Several nodes may lead to one (a set of categories does): the longest path counts.
    """
    level = np.full(len(true), -1, dtype=np.int64)
    now = roots
    for steps in range(len(true)):
        level[now] = steps
        inner = now[true[now] != now]
        now = np.unique(np.concatenate([true[inner], false[inner]]))
        if not len(now):
            break
    if len(now) or (level < 0).any():
        raise ConversionError("some tree nodes lead back to each other")
    return level


def _rounded(threshold: F64, comparison: Comparisons, *, dtype: type) -> F64:
    """Round thresholds to a type so that no value of that type changes its path."""
    with np.errstate(over="ignore"):
        same: npt.NDArray[np.floating[Any]] = threshold.astype(dtype)
        near: F64 = same.astype(np.float64)
        down, up = (
            np.nextafter(same, dtype(end)).astype(np.float64)
            for end in (-np.inf, np.inf)
        )
    low = np.where(near > threshold, down, near)
    high = np.where(near < threshold, up, near)
    lost = (comparison == EQUAL) & (near != threshold)
    if lost.any():
        raise ConversionError(
            f"a tree tests for {threshold[lost][0]!r}, which is no {dtype.__name__}"
        )
    rounded: F64 = np.where(comparison == AT_MOST, low, high)
    return rounded


def _test(mode: str, values: F64, threshold: F64) -> Flags:
    """Apply one of the three comparisons."""
    held: Flags = values == threshold
    if mode != EQUAL:
        held = values < threshold if mode == LESS else values <= threshold
    return held


class Nodes:
    """
    Nodes in execution order, with their constants.

    Args:
        prefix: Start of every name, so that two operators of a graph do not collide.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """Add a constant; return its full name."""
        full = f"{self._prefix}{name}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), full))
        return full

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        *,
        axis: int | None = None,
        to: int | None = None,
        perm: Sequence[int] | None = None,
        keepdims: int | None = None,
        output: str | None = None,
    ) -> str:
        """Add a node with one output; return the output's name."""
        name = output or f"{self._prefix}{len(self.nodes)}_{kind.lower()}"
        node = helper.make_node(kind, list(inputs), [name], name=name)
        attributes = {"axis": axis, "to": to, "perm": perm, "keepdims": keepdims}
        for key, value in attributes.items():
            if value is not None:
                node.attribute.append(helper.make_attribute(key, value))
        self.nodes.append(node)
        return name


def feature_columns(
    nodes: Nodes, features: str, *, forest: Forest, columns: int, dtype: type
) -> tuple[str, npt.NDArray[np.int32]]:
    """
    Prepare the columns that trees read, and return which one each node reads.

    Where NaN takes the path of a test that holds, the node reads a copy of its column
    with minus infinity for NaN. Columns are gathered: in a product with a matrix of
    zeros and ones, one infinity would make the whole row NaN.

    Args:
        features: The features; [N, columns].
        columns: F, the number of features.

    Returns:
        Name of a tensor [N, F] or [N, 2 F], and a column per node; int32 [M].
    """
    lowered = forest.missing & ~forest.odd
    column = forest.feature + columns * lowered
    if not lowered.any():
        return features, column.astype(np.int32)
    lowest = nodes.constant("lowest", np.asarray(-np.inf, dtype=dtype))
    gap = nodes.add("IsNaN", [features])
    filled = nodes.add("Where", [gap, lowest, features])
    both = nodes.add("Concat", [features, filled], axis=1)
    return both, column.astype(np.int32)


def sum_parts(forest: Forest) -> list[F64]:
    """Split leaf values into parts whose sums are exact; one to three [M, K]."""
    return exact_parts(forest.values, tree=forest.tree)


def joined_parts(nodes: Nodes, sums: str, *, parts: int, outputs: int) -> str:
    """Add up the sums of all parts, the finest first; [N, parts K] to [N, K]."""
    if parts == 1:
        return sums
    split = []
    for part in range(parts):
        chosen = np.arange(outputs, dtype=np.int32) + part * outputs
        at = nodes.constant(f"part_{part}", chosen)
        split.append(nodes.add("Gather", [sums, at], axis=1))
    total = split.pop()
    while split:
        total = nodes.add("Add", [total, split.pop()])
    return total


# Write trees as matrix products: all splits at once, then the leaf that matches them.
#
# This is the GEMM strategy of "A Tensor Compiler for Unified Machine Learning
# Prediction Serving" (Nakandala et al., OSDI 2020): a row reaches a leaf if every test
# that must hold on the leaf's path holds, and none that must not. All numbers before
# the leaf values are small integers, so nothing is rounded on the way.

_NEVER = -1.0  # unreachable count of tests, for leaves that pad a smaller tree


def gemm_bytes(forest: Forest) -> int:
    """Return how large the matrices of paths would be."""
    inner, leaves = _sizes(forest)
    return 4 * len(forest.roots) * inner * leaves


def gemm_nodes(
    nodes: Nodes, features: str, *, forest: Forest, columns: int, dtype: type
) -> str:
    """
    Write trees as matrix products.

    Args:
        features: The features; [N, columns].
        columns: F, the number of features.

    Returns:
        Name of the sums; float32 [N, K].
    """
    source, column = feature_columns(
        nodes, features, forest=forest, columns=columns, dtype=dtype
    )
    parts = sum_parts(forest)
    paths = _Paths(forest)
    # Put rows last: a batch of any size is then the last dimension of every product.
    turned = nodes.add("Transpose", [source], perm=(1, 0))
    at = nodes.constant("columns", column[paths.split])
    values = nodes.add("Gather", [turned, at], axis=0)
    held = _held(nodes, values, forest=forest, paths=paths, dtype=dtype)
    if forest.odd.any():
        gap = nodes.add("IsNaN", [values])
        odd = nodes.constant("odd", forest.odd[paths.split][:, :, None])
        held = nodes.add("Or", [held, nodes.add("And", [gap, odd])])
    counted = nodes.add("Cast", [held], to=TensorProto.FLOAT)
    way = nodes.constant("paths", paths.matrix)
    agreed = nodes.add("MatMul", [way, counted])
    wanted = nodes.constant("wanted", paths.wanted)
    reached = nodes.add("Equal", [agreed, wanted])
    hot = nodes.add("Cast", [reached], to=TensorProto.FLOAT)
    leaves = np.concatenate([paths.leaf_values(part) for part in parts], axis=1)
    weights = nodes.constant("leaves", leaves.astype(np.float32))
    of_trees = nodes.add("MatMul", [weights, hot])
    axes = nodes.constant("trees", np.asarray([0], dtype=np.int64))
    summed = nodes.add("ReduceSum", [of_trees, axes], keepdims=0)
    upright = nodes.add("Transpose", [summed], perm=(1, 0))
    return joined_parts(nodes, upright, parts=len(parts), outputs=forest.outputs)


class _Paths:
    """
    The tests on the path to each leaf, with trees padded to the size of the largest.

    Attributes:
        split: Node at each position; int [T, I].
        matrix: +1 where a test must hold, -1 where it must not; float32 [T, L, I].
        wanted: Number of tests that must hold; float32 [T, L, 1].
        leaf: Node at the end of each path, -1 for none; int [T, L].
    """

    def __init__(self, forest: Forest) -> None:
        trees = len(forest.roots)
        splits, paths = _sizes(forest)
        self.split = np.repeat(forest.roots[:, None], splits, axis=1)
        self.matrix = np.zeros((trees, paths, splits), dtype=np.float32)
        self.wanted = np.full((trees, paths, 1), _NEVER, dtype=np.float32)
        self.leaf = np.full((trees, paths), -1, dtype=np.int64)
        for tree in range(trees):
            self._fill(tree, forest)

    def _fill(self, tree: int, forest: Forest) -> None:
        """Follow every path of one tree."""
        inner = np.flatnonzero((forest.tree == tree) & ~forest.leaf)
        self.split[tree, : len(inner)] = inner
        place = {int(at): number for number, at in enumerate(inner)}
        found = 0
        pending: list[tuple[int, dict[int, float]]] = [(int(forest.roots[tree]), {})]
        while pending:
            at, tests = pending.pop()
            if at in place:
                pending.append((int(forest.true[at]), {**tests, place[at]: 1.0}))
                pending.append((int(forest.false[at]), {**tests, place[at]: -1.0}))
                continue
            self.leaf[tree, found] = at
            self.wanted[tree, found] = sum(one > 0 for one in tests.values())
            self.matrix[tree, found, list(tests)] = list(tests.values())
            found += 1

    def leaf_values(self, values: F64) -> F64:
        """Arrange the values of leaves, [M, K], as [T, K, L]."""
        placed = values[self.leaf] * (self.leaf >= 0)[:, :, None]
        arranged: F64 = np.swapaxes(placed, 1, 2)
        return arranged


def _sizes(forest: Forest) -> tuple[int, int]:
    """Count the splits, at least one, and the paths of the largest tree."""
    splits = np.bincount(forest.tree[~forest.leaf], minlength=1)
    ways = [1] * len(forest.leaf)
    for at in np.argsort(-forest.level):
        if forest.true[at] != at:
            ways[at] = ways[forest.true[at]] + ways[forest.false[at]]
    return max(1, int(splits.max())), max(ways[root] for root in forest.roots)


def _held(
    nodes: Nodes, values: str, *, forest: Forest, paths: _Paths, dtype: type
) -> str:
    """Write the comparisons; bool [T, I, N]."""
    at = paths.split[:, :, None]
    against = nodes.constant("thresholds", forest.threshold[at].astype(dtype))
    modes = forest.modes
    if len(modes) == 1:
        return nodes.add(modes[0], [values, against])
    held = ""
    for mode in modes:
        chosen = (forest.comparison == mode)[paths.split][:, :, None]
        of_mode = nodes.constant(f"is_{mode.lower()}", chosen)
        one = nodes.add("And", [nodes.add(mode, [values, against]), of_mode])
        held = nodes.add("Or", [held, one]) if held else one
    return held


# Write trees as gathers: every row walks down all trees at once, one level per step.
#
# This is the tree traversal strategy of "A Tensor Compiler for Unified Machine Learning
# Prediction Serving" (Nakandala et al., OSDI 2020). A leaf points to itself, so all
# trees take as many steps as the deepest one.

_NODES_PER_STEP = 7  # with one kind of comparison


def traversal_nodes_count(forest: Forest) -> int:
    """Return about how many nodes the graph would get."""
    return forest.depth * (_NODES_PER_STEP + 3 * (len(forest.modes) - 1))


def traversal_bytes(forest: Forest) -> int:
    """Return about how large the tables of nodes and leaves would be."""
    return len(forest.true) * (16 + 12 * forest.outputs)


def traversal_nodes(
    nodes: Nodes, features: str, *, forest: Forest, columns: int, dtype: type
) -> str:
    """
    Write trees as steps from node to node.

    Args:
        features: The features; [N, columns].
        columns: F, the number of features.

    Returns:
        Name of the sums; float32 [N, K].
    """
    source, column = feature_columns(
        nodes, features, forest=forest, columns=columns, dtype=dtype
    )
    parts = sum_parts(forest)
    walk = _Walk(nodes, source, forest=forest, column=column, dtype=dtype)
    at = walk.first()
    for _ in range(forest.depth - 1):
        at = walk.next(at)
    leaves = np.concatenate(parts, axis=1).astype(np.float32)
    found = nodes.add("Gather", [nodes.constant("leaves", leaves), at], axis=0)
    axes = nodes.constant("trees", np.asarray([1], dtype=np.int64))
    summed = nodes.add("ReduceSum", [found, axes], keepdims=0)
    return joined_parts(nodes, summed, parts=len(parts), outputs=forest.outputs)


class _Walk:
    """Write the steps; a row's position in each tree is int32 [N, T]."""

    def __init__(
        self,
        nodes: Nodes,
        source: str,
        *,
        forest: Forest,
        column: npt.NDArray[np.int32],
        dtype: type,
    ) -> None:
        self._nodes = nodes
        self._source = source
        self._forest = forest
        self._tables = {
            "column": column,
            "threshold": forest.threshold.astype(dtype),
            "true": forest.true.astype(np.int32),
            "false": forest.false.astype(np.int32),
        } | {f"is_{one.lower()}": forest.comparison == one for one in forest.modes[1:]}
        if forest.odd.any():
            self._tables["odd"] = forest.odd
        self._names: dict[str, str] = {}

    def first(self) -> str:
        """Write the step from the roots, which are the same for every row."""
        add, roots = self._nodes.add, self._forest.roots
        chosen = {
            key: self._nodes.constant(f"root_{key}", table[roots])
            for key, table in self._tables.items()
        }
        value = add("Gather", [self._source, chosen["column"]], axis=1)
        held = self._held(value, chosen)
        return add("Where", [held, chosen["true"], chosen["false"]])

    def next(self, at: str) -> str:
        """Write one more step."""
        add = self._nodes.add
        if not self._names:
            self._names = {
                key: self._nodes.constant(key, table)
                for key, table in self._tables.items()
            }
        chosen = {
            key: add("Gather", [name, at], axis=0) for key, name in self._names.items()
        }
        value = add("GatherElements", [self._source, chosen["column"]], axis=1)
        held = self._held(value, chosen)
        return add("Where", [held, chosen["true"], chosen["false"]])

    def _held(self, value: str, chosen: dict[str, str]) -> str:
        """Test the values at the chosen nodes."""
        add = self._nodes.add
        first, *others = self._forest.modes
        held = add(first, [value, chosen["threshold"]])
        for mode in others:
            one = add(mode, [value, chosen["threshold"]])
            of_mode = chosen[f"is_{mode.lower()}"]
            # No Where here: TensorRT and onnxruntime both support And and Or of
            # booleans.
            unchanged = add("And", [held, add("Not", [of_mode])])
            held = add("Or", [unchanged, add("And", [one, of_mode])])
        if "odd" in chosen:
            gap = add("And", [add("IsNaN", [value]), chosen["odd"]])
            held = add("Or", [held, gap])
        return held


AUTO, GEMM, TRAVERSAL = "auto", "gemm", "traversal"
STRATEGIES = (AUTO, GEMM, TRAVERSAL)
GEMM_DEPTH = 5  # deepest trees that `auto` writes as products; docs/conversion.md
LARGEST_BYTES = 256 << 20  # of the constants; the limit of a protobuf is 2 GiB
LARGEST_NODES = 2_000  # of the graph; a step of a walk needs about 7
_OLDEST_OPSET = 13  # ReduceSum with its axes as an input


class Tensorized(msgspec.Struct, frozen=True):
    """
    A graph without tree operators.

    Attributes:
        strategies: Strategy for each tree operator, in the graph's order.
        depths: Depth of the deepest tree of each tree operator.
    """

    model: bytes
    strategies: tuple[str, ...]
    depths: tuple[int, ...]


def tensorize(model: bytes, *, strategy: str = AUTO) -> Tensorized:
    """
    Replace the tree ensembles of a converted graph by plain ONNX operators.

    The result has the same inputs and outputs and no operator of `ai.onnx.ml`. Prove
    the result against the source like any other converted model.

    Args:
        strategy: "gemm", "traversal", or "auto": "gemm" up to a depth of GEMM_DEPTH.

    Raises:
        ConversionError: It has no trees, uses something that is not supported, or the
            result would be too large; the error says how large.
    """
    if strategy not in STRATEGIES:
        raise ConversionError(
            f"strategy is {strategy!r}; there are {', '.join(STRATEGIES)}"
        )
    found = onnx.load_from_string(model)
    graph = found.graph
    _require_opset(found)
    kinds = _tensor_kinds(found)
    written = []
    for number, node in enumerate(_tree_operators(graph)):
        given, dtype = _features(graph, node.input[0], kinds=kinds)
        forest = forest_of(trees_from_onnx(node), dtype=dtype)
        chosen = strategy
        if strategy == AUTO:
            chosen = GEMM if forest.depth <= GEMM_DEPTH else TRAVERSAL
        _require_size(forest, strategy=chosen)
        nodes = Nodes(f"trees{number}_")
        write = gemm_nodes if chosen == GEMM else traversal_nodes
        columns = _columns(found, given, least=int(forest.feature.max()) + 1)
        sums = write(nodes, given, forest=forest, columns=columns, dtype=dtype)
        _write_scores(nodes, node, sums, graph=graph)
        _replace(graph, node, nodes)
        written.append((chosen, forest.depth))
    _require_plain(found)
    drop_unused(graph)
    strategies, depths = zip(*written, strict=True)
    return Tensorized(model=_finished(found), strategies=strategies, depths=depths)


def _tree_operators(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = [one for one in graph.node if one.op_type in OPERATORS]
    if not found:
        raise ConversionError(
            "the graph has no tree ensemble; tensorizing is for trees, and this "
            "model is plain operators already or needs another way"
        )
    return found


def _require_opset(model: onnx.ModelProto) -> None:
    newest = max(
        (one.version for one in model.opset_import if not one.domain), default=1
    )
    if newest < _OLDEST_OPSET:
        raise ConversionError(
            f"the graph has opset {newest}; trees are tensorised for opset "
            f"{_OLDEST_OPSET} or later: export it again for that"
        )


def _require_size(forest: Forest, *, strategy: str) -> None:
    """Raise, with the size, if the trees' tensors would be too large."""
    if strategy == GEMM:
        size, count = gemm_bytes(forest), 0
    else:
        size, count = traversal_bytes(forest), traversal_nodes_count(forest)
    if size > LARGEST_BYTES or count > LARGEST_NODES:
        other = ", or the other strategy" if strategy == GEMM else ""
        raise ConversionError(
            f"{len(forest.roots)} trees of depth {forest.depth} would take "
            f"{size:,} bytes and {count:,} nodes as {strategy}, at most are "
            f"{LARGEST_BYTES:,} and {LARGEST_NODES:,}: prune them{other}"
        )


def _tensor_kinds(model: onnx.ModelProto) -> dict[str, int]:
    """Infer the element type of every tensor."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return {one.name: one.type.tensor_type.elem_type for one in values}


def _features(
    graph: onnx.GraphProto, name: str, *, kinds: dict[str, int]
) -> tuple[str, type]:
    """
    Return the name and the type of the trees' input.

    If a Cast from float32 to float64 precedes a forest, return the float32 input of
    that Cast instead.
    """
    producer = next((one for one in graph.node if name in one.output), None)
    wide = kinds.get(name) == TensorProto.DOUBLE
    before = producer.input[0] if producer and producer.op_type == "Cast" else ""
    if wide and kinds.get(before) == TensorProto.FLOAT:
        return before, np.float32
    kind = kinds.get(name)
    if kind not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        raise ConversionError(
            f"trees read {name!r} of type {TensorProto.DataType.Name(kind or 0)}; "
            "tensorised are those that read FLOAT or DOUBLE"
        )
    return name, np.float64 if wide else np.float32


def _columns(model: onnx.ModelProto, name: str, *, least: int) -> int:
    """Return the number of features that trees read; at least as many as they use."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    for one in (*inferred.input, *inferred.value_info):
        dims = one.type.tensor_type.shape.dim
        if one.name == name and len(dims) == 2 and dims[1].dim_value:
            return int(dims[1].dim_value)
    raise ConversionError(
        f"the graph does not say how many columns {name!r} has (at least {least})"
    )


def _write_scores(
    nodes: Nodes, node: onnx.NodeProto, sums: str, *, graph: onnx.GraphProto
) -> None:
    """Convert the sums to the operator's output, under its name."""
    found = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    how = found.get("post_transform", b"NONE").decode()
    classifier = node.op_type == OPERATORS[0]
    answer = node.output[1] if classifier else node.output[0]
    if classifier and _is_read(graph, node.output[0]):
        raise ConversionError(
            "the graph uses the label of a tree classifier; tensorised are "
            "probabilities, the decision is the policy's"
        )
    second = len(class_labels(found)) == 2 and len(set(found["class_ids"])) == 1
    if how == "SOFTMAX" and not second:
        nodes.add("Softmax", [sums], axis=1, output=answer)
    elif how in ("NONE", "LOGISTIC"):
        one = nodes.constant("one", np.float32(1))
        last = _logistic(nodes, sums, one=one) if how == "LOGISTIC" else sums
        if second:
            first = nodes.add("Sub", [one, last])
            nodes.add("Concat", [first, last], axis=1, output=answer)
        else:
            nodes.add("Identity", [last], output=answer)
    else:
        raise ConversionError(f"post_transform {how} of trees is not tensorised")


def _logistic(nodes: Nodes, margin: str, *, one: str) -> str:
    """Write 1 / (1 + exp(-margin)); Sigmoid loses small probabilities."""
    odds = nodes.add("Exp", [nodes.add("Neg", [margin])])
    return nodes.add("Div", [one, nodes.add("Add", [odds, one])])


def _is_read(graph: onnx.GraphProto, name: str) -> bool:
    outputs: Sequence[str] = [one.name for one in graph.output]
    return name in outputs or any(name in node.input for node in graph.node)


def _replace(graph: onnx.GraphProto, node: onnx.NodeProto, nodes: Nodes) -> None:
    at = list(graph.node).index(node)
    remaining = list(graph.node)
    remaining[at : at + 1] = nodes.nodes
    del graph.node[:]
    graph.node.extend(remaining)
    graph.initializer.extend(nodes.constants)


def _require_plain(model: onnx.ModelProto) -> None:
    """Raise if the graph would still need ai.onnx.ml."""
    left = sorted({one.op_type for one in model.graph.node if one.domain == ML_DOMAIN})
    if left:
        raise ConversionError(
            f"apart from its trees, the graph has {', '.join(left)} of {ML_DOMAIN}, "
            "which are not tensorised"
        )


def _finished(model: onnx.ModelProto) -> bytes:
    """Drop unused opsets, check the graph, serialize it."""
    newest = max(one.version for one in model.opset_import if not one.domain)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", newest))
    del model.graph.value_info[:]
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        message = str(error).splitlines()[0]
        raise ConversionError(
            f"the tensorised graph is not valid: {message}"
        ) from error
    return bytes(model.SerializeToString(deterministic=True))

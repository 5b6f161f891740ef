"""
Answer from the numbers in a model's file, with NumPy alone.

Written from the formats' definitions and from no code of the converters: the tests hold
what is converted against these. NaN is a missing value; rows are float32.
"""

from __future__ import annotations

import json
import re
import struct

import numpy as np

# XGBoost: JSON and UBJSON ------------------------------------------------------------


def plain_ubjson(data):
    """Decode UBJSON to dictionaries and lists."""
    at = 0
    sizes = {"i": "b", "U": "B", "I": "h", "l": "i", "L": "q", "d": "f", "D": "d"}

    def take(code):
        nonlocal at
        (found,) = struct.unpack_from(">" + code, data, at)
        at += struct.calcsize(code)
        return found

    def letter():
        return chr(take("B"))

    def text():
        nonlocal at
        size = take(sizes[letter()])
        at += size
        return data[at - size : at].decode()

    def value(kind):
        nonlocal at
        if kind in sizes:
            return take(sizes[kind])
        if kind == "S":
            return text()
        if kind in "TFZ":
            return {"T": True, "F": False, "Z": None}[kind]
        inner, count = "", None
        if chr(data[at]) == "$":
            at += 1
            inner = letter()
        if chr(data[at]) == "#":
            at += 1
            count = take(sizes[letter()])
        if kind == "[":
            found = []
            while count is None or len(found) < count:
                mark = inner or letter()
                if count is None and mark == "]":
                    break
                found.append(value(mark))
            return found
        pairs = {}
        while count is None or len(pairs) < count:
            if count is None and chr(data[at]) == "}":
                at += 1
                break
            name = text()
            pairs[name] = value(inner or letter())
        return pairs

    return value(letter())


def xgboost_document(data):
    """Decode a file of either form."""
    if data[1:2] in (b'"', b"\n", b" "):
        return json.loads(data)
    return plain_ubjson(data)


def xgboost_probabilities(document, rows):
    """Return the probabilities [N, K], trees up to the best round."""
    learner = document["learner"]
    booster = learner["gradient_booster"]
    model = booster["gbtree"]["model"] if "gbtree" in booster else booster["model"]
    trees, of_class = model["trees"], model["tree_info"]
    weights = booster.get("weight_drop", model.get("weight_drop", [1.0] * len(trees)))
    classes = max(1, int(learner["learner_model_param"]["num_class"]))
    base = learner["learner_model_param"]["base_score"].strip("[]").split(",")
    base = [float(one) for one in base] * (classes // len(base))
    if classes == 1:
        base = [np.log(base[0] / (1 - base[0]))]
    best = learner["attributes"].get("best_iteration")
    if best is not None:
        parallel = int(model["gbtree_model_param"].get("num_parallel_tree", 1))
        trees = trees[: (int(best) + 1) * max(1, parallel) * classes]
    margins = np.tile(np.asarray(base, np.float64), (len(rows), 1))
    for number, tree in enumerate(trees):
        for row, features in enumerate(rows):
            leaf = np.float32(xgboost_leaf(tree, features))
            margins[row, of_class[number]] += float(np.float32(weights[number])) * leaf
    if classes == 1:
        second = 1 / (1 + np.exp(-margins[:, 0]))
        return np.stack([1 - second, second], axis=1)
    power = np.exp(margins - margins.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


def xgboost_leaf(tree, features):
    """Walk one row down one tree to the value of its leaf."""
    node = 0
    while tree["left_children"][node] != -1:
        value = features[tree["split_indices"][node]]
        if np.isnan(value):
            left = bool(tree["default_left"][node])
        elif tree.get("split_type", [0] * (node + 1))[node] == 1:
            part = tree["categories_nodes"].index(node)
            start = tree["categories_segments"][part]
            chosen = tree["categories"][start : start + tree["categories_sizes"][part]]
            left = int(value) not in chosen
        else:
            left = value < np.float32(tree["split_conditions"][node])
        node = tree["left_children" if left else "right_children"][node]
    return tree["split_conditions"][node]


# LightGBM: text ----------------------------------------------------------------------


def lightgbm_probabilities(text, rows):
    """Return the probabilities [N, K]."""
    head, *parts = re.split(r"(?m)^Tree=\d+\n", text.partition("\nend of trees")[0])
    header = dict(line.partition("=")[::2] for line in head.splitlines())
    classes = int(header["num_class"])
    margins = np.zeros((len(rows), classes))
    for number, part in enumerate(parts):
        tree = dict(line.partition("=")[::2] for line in part.splitlines() if line)
        tree = {name: value.split() for name, value in tree.items()}
        for row, features in enumerate(rows):
            margins[row, number % classes] += lightgbm_leaf(tree, features)
    if "average_output" in header:
        margins /= len(parts) // classes
    if classes == 1:
        factor = float(header["objective"].partition("sigmoid:")[2])
        second = 1 / (1 + np.exp(-factor * margins[:, 0]))
        return np.stack([1 - second, second], axis=1)
    power = np.exp(margins - margins.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


def lightgbm_leaf(tree, features):
    """Walk one row down one tree to the value of its leaf."""
    node = 0
    while node >= 0 and int(tree["num_leaves"][0]) > 1:
        value = float(features[int(tree["split_feature"][node])])
        threshold = float(tree["threshold"][node])
        way = int(tree["decision_type"][node])
        missing = way >> 2 & 3  # 0 none, 1 zero, 2 NaN
        if way & 1:
            bounds = tree["cat_boundaries"]
            start, stop = int(bounds[int(threshold)]), int(bounds[int(threshold) + 1])
            words = [int(one) for one in tree["cat_threshold"][start:stop]]
            code = -1 if np.isnan(value) else int(value)
            left = 0 <= code < 32 * len(words) and words[code // 32] >> code % 32 & 1
        else:
            # lightgbm takes rows apart into their numbers that are not 0.
            if (np.isnan(value) and missing != 2) or abs(value) <= np.float32(1e-35):
                value = 0.0
            lost = np.isnan(value) or (missing == 1 and value == 0)
            left = bool(way & 2) if lost else value <= threshold
        node = int(tree["left_child" if left else "right_child"][node])
    return float(tree["leaf_value"][~node if node < 0 else 0])


# ONNX: the operators that exporters of classifiers write ------------------------------


def onnx_probabilities(graph, attributes, constants, rows):
    """
    Return the probabilities [N, K].

    Args:
        graph: Has `node`, `input` and `output`.
        attributes: Of a node to a dictionary of values.
        constants: Name -> array.
        rows: float32 [N, F].
    """
    known = {one.name: one for one in graph.input}
    values = dict(constants)
    values[next(name for name in known if name not in values)] = rows
    for node in graph.node:
        given = [values[name] for name in node.input]
        found = onnx_operator(node.op_type, attributes(node), given)
        values |= dict(zip(node.output, found, strict=False))
    last = [one for one in graph.output if "label" not in one.name]
    return np.asarray(values[last[-1].name], dtype=np.float64)


def onnx_operator(kind, own, given):
    """Return the outputs of one operator."""
    simple = {
        "Identity": lambda x: x,
        "Cast": lambda x: x,
        "ZipMap": lambda x: x,
        "Neg": lambda x: -x,
        "Exp": np.exp,
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    }
    if kind in simple:
        return [simple[kind](*given)]
    if kind == "Concat":
        return [np.concatenate(given, axis=own["axis"])]
    if kind == "Softmax":
        return [post_transform(given[0], "SOFTMAX")]
    if kind == "Normalizer":
        assert own["norm"] == b"L1"
        return [given[0] / np.abs(given[0]).sum(axis=1, keepdims=True)]
    if kind == "LinearClassifier":
        shift = np.asarray(own["intercepts"])
        factors = np.asarray(own["coefficients"]).reshape(len(shift), -1)
        scores = given[0].astype(np.float64) @ factors.T + shift
        return [None, post_transform(scores, text(own.get("post_transform", "NONE")))]
    if kind == "TreeEnsembleClassifier":
        labels = own.get("classlabels_int64s") or own["classlabels_strings"]
        scores = tree_sums(own, given[0], side="class", outputs=len(labels))
        after = text(own.get("post_transform", "NONE"))
        if len(labels) == 2 and len(set(own["class_ids"])) == 1:
            chosen = set(own["class_ids"]).pop()
            second = scores[:, chosen : chosen + 1]
            second = post_transform(second, after) if after == "LOGISTIC" else second
            return [None, np.hstack([1 - second, second])]
        return [None, post_transform(scores, after)]
    if kind == "TreeEnsembleRegressor":
        outputs = own["n_targets"]
        scores = tree_sums(own, given[0], side="target", outputs=outputs)
        return [post_transform(scores, text(own.get("post_transform", "NONE")))]
    raise NotImplementedError(kind)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def post_transform(scores, kind):
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return 1 / (1 + np.exp(-scores))
    if kind == "SOFTMAX":
        power = np.exp(scores - scores.max(axis=1, keepdims=True))
        return power / power.sum(axis=1, keepdims=True)
    raise NotImplementedError(kind)


def tree_sums(own, rows, *, side, outputs):
    """Walk every row down every tree of a tree operator; add the weights up."""
    names = ("featureids", "values", "modes", "truenodeids", "falsenodeids")
    nodes, roots = {}, {}
    size = len(own["nodes_nodeids"])
    missing = own.get("nodes_missing_value_tracks_true") or [0] * size
    for at in range(size):
        tree = own["nodes_treeids"][at]
        roots.setdefault(tree, own["nodes_nodeids"][at])
        nodes[tree, own["nodes_nodeids"][at]] = (
            *(own[f"nodes_{name}"][at] for name in names),
            missing[at],
        )
    leaves = {}
    parts = (own[f"{side}_{name}"] for name in ("treeids", "nodeids", "ids", "weights"))
    for tree, node, output, weight in zip(*parts, strict=True):
        leaves.setdefault((tree, node), []).append((output, weight))
    sums = np.zeros((len(rows), outputs))
    base = list(own.get("base_values") or ())
    sums += np.resize(base, outputs) if base else 0.0
    counts = (
        len(roots) if text(own.get("aggregate_function", "SUM")) == "AVERAGE" else 1
    )
    assert text(own.get("aggregate_function", "SUM")) in ("SUM", "AVERAGE")
    for row, features in enumerate(rows):
        for tree, root in roots.items():
            at = root
            while text(nodes[tree, at][2]) != "LEAF":
                feature, limit, mode, yes, no, lost = nodes[tree, at]
                value, limit = features[feature], np.float32(limit)
                holds = {
                    "BRANCH_LEQ": value <= limit,
                    "BRANCH_LT": value < limit,
                    "BRANCH_GTE": value >= limit,
                    "BRANCH_GT": value > limit,
                    "BRANCH_EQ": value == limit,
                    "BRANCH_NEQ": value != limit,
                }[text(mode)]
                at = yes if holds or (np.isnan(value) and lost) else no
            for output, weight in leaves.get((tree, at), ()):
                sums[row, output] += np.float32(weight) / counts
    return sums

"""Write the served model as a file that XGBoost's own interface loads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError
from tollgate.explanation.explanation_file import EXPLAIN_FILE, Trees, read_explanation

_NO_PARENT = 2**31 - 1  # XGBoost's value for the parent of a root


def write_xgboost(version: Path, path: Path) -> None:
    """
    Write the trees of a model version as XGBoost's JSON.

    Args:
        version: Version directory of a classifier of two classes made by XGBoost.
        path: Path of the file; `XGBClassifier.load_model` reads it.

    Raises:
        RepositoryError: The version holds another kind of model.
    """
    explanation = read_explanation(version / EXPLAIN_FILE)
    trees = explanation.trees
    if trees is None or explanation.link != "logistic" or len(trees.code):
        problem = "is not one of numeric trees with two classes"
        raise RepositoryError(version / EXPLAIN_FILE, problem)
    bounds = trees.start.tolist()
    made = [
        _tree(trees, number, features=len(explanation.features), nodes=slice(*nodes))
        for number, nodes in enumerate(itertools.pairwise(bounds))
    ]
    base = 1.0 / (1.0 + np.exp(-float(explanation.base[0])))
    path.write_text(
        json.dumps(_document(made, features=len(explanation.features), base=base))
    )


def _tree(trees: Trees, number: int, *, features: int, nodes: slice) -> dict[str, Any]:
    """Write one tree; a row goes left below the threshold, not at it."""
    first = nodes.start
    count = nodes.stop - first
    left = np.where(trees.left[nodes] < 0, -1, trees.left[nodes] - first)
    inner = left >= 0
    parents = np.full(count, _NO_PARENT, np.int64)
    parents[left[inner]] = parents[left[inner] + 1] = np.flatnonzero(inner)
    above = np.nextafter(trees.threshold[nodes], np.float32(np.inf), dtype=np.float32)
    value = trees.value[nodes, 0].astype(np.float32)
    return {
        "id": number,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
        "left_children": left.tolist(),
        "right_children": np.where(inner, left + 1, -1).tolist(),
        "parents": parents.tolist(),
        "split_indices": np.maximum(trees.feature[nodes], 0).tolist(),
        "split_conditions": _exact(np.where(inner, above, value)),
        "split_type": [0] * count,
        "default_left": trees.missing_left[nodes].astype(int).tolist(),
        "base_weights": _exact(value),
        "loss_changes": [0.0] * count,
        "sum_hessian": _exact(trees.cover[nodes].astype(np.float32)),
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
    }


def _exact(numbers: npt.NDArray[np.float32]) -> list[float]:
    """Print float32 so that reading gives the same bits."""
    return [float(one) for one in numbers.astype(np.float64)]


def _document(
    trees: list[dict[str, Any]], *, features: int, base: float
) -> dict[str, Any]:
    count = len(trees)
    return {
        "version": [3, 0, 0],
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {
                "name": "gbtree",
                "model": {
                    "gbtree_model_param": {
                        "num_parallel_tree": "1",
                        "num_trees": str(count),
                    },
                    "iteration_indptr": list(range(count + 1)),
                    "tree_info": [0] * count,
                    "trees": trees,
                },
            },
            "learner_model_param": {
                "base_score": repr(base),
                "boost_from_average": "0",
                "num_class": "0",
                "num_feature": str(features),
                "num_target": "1",
            },
            "objective": {
                "name": "binary:logistic",
                "reg_loss_param": {"scale_pos_weight": "1"},
            },
        },
    }

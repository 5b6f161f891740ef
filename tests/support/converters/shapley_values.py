"""Shapley values of scikit-learn's trees, from all subsets of the features."""

import math
from itertools import combinations

import numpy as np
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.tree import DecisionTreeClassifier

COLUMNS = 5


def shapley(worth):
    """Enumerate all subsets of the features; float64 [F, ...]."""
    everything = range(COLUMNS)
    values = {
        subset: worth(subset)
        for size in range(COLUMNS + 1)
        for subset in combinations(everything, size)
    }
    order = math.factorial(COLUMNS)
    return np.asarray(
        [
            sum(
                math.factorial(len(one))
                * math.factorial(COLUMNS - len(one) - 1)
                / order
                * (values[tuple(sorted((*one, feature)))] - value)
                for one, value in values.items()
                if feature not in one
            )
            for feature in everything
        ]
    )


def tree_worth(tree, row, *, known, value):
    """Walk scikit-learn's own arrays; an unknown feature goes both ways by cover."""

    def walk(node):
        children = tree.children_left[node], tree.children_right[node]
        if children[0] < 0:
            return value[node]
        feature = tree.feature[node]
        if feature in known:
            x = row[feature]
            left = (
                tree.missing_go_to_left[node]
                if np.isnan(x)
                else x <= tree.threshold[node]
            )
            return walk(children[not left])
        cover = tree.weighted_n_node_samples
        return sum(cover[one] / cover[node] * walk(one) for one in children)

    return walk(0)


def histogram_worth(nodes, row, *, known):
    """Walk the nodes of histogram boosting."""

    def walk(at):
        node = nodes[at]
        if node["is_leaf"]:
            return node["value"]
        children = int(node["left"]), int(node["right"])
        x = row[node["feature_idx"]]
        if node["feature_idx"] in known:
            left = (
                node["missing_go_to_left"]
                if np.isnan(x)
                else x <= node["num_threshold"]
            )
            return walk(children[not left])
        return sum(nodes[one]["count"] / node["count"] * walk(one) for one in children)

    return walk(0)


def boosted_worth(model, trees, row, known):
    """Sum the trees of one margin."""
    return model.learning_rate * sum(
        tree_worth(one.tree_, row, known=known, value=one.tree_.value.ravel())
        for one in trees
    )


def model_worth(model, row):
    """Return the function from known features to margins, [outputs], base left out."""
    if isinstance(model, DecisionTreeClassifier):
        trees, factor = [model.tree_], 1
    elif isinstance(model, (RandomForestClassifier, ExtraTreesClassifier)):
        trees = [one.tree_ for one in model.estimators_]
        factor = 1 / len(trees)
    elif isinstance(model, GradientBoostingClassifier):
        return lambda known: np.asarray(
            [boosted_worth(model, trees, row, known) for trees in model.estimators_.T]
        )
    else:
        return lambda known: sum(
            np.asarray(
                [histogram_worth(one.nodes, row, known=known) for one in of_round]
            )
            for of_round in model._predictors
        )
    return lambda known: (
        factor
        * sum(
            tree_worth(
                one,
                row,
                known=known,
                value=one.value[:, 0] / one.value[:, 0].sum(axis=1, keepdims=True),
            )
            for one in trees
        )
    )

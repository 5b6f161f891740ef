"""Contributions are the Shapley values of the model, whatever trees it has."""

import math
from itertools import combinations

import numpy as np
import pytest
from msgspec.structs import replace

from tollgate.errors import RepositoryError
from tollgate.explanation import Explainer, Explanation, Linear, Trees
from tollgate.explanation.explanation_file import unexplained

COLUMNS = 4


def random_trees(seed, *, count=5, depth=5, outputs=1, shared=False, covers=None):
    """Grow trees that test features again and again, by threshold and by code."""
    random = np.random.default_rng(seed)
    left, feature, threshold, missing, by_code, cover, value = ([] for _ in range(7))
    start, output, pairs = [0], [], []
    for tree in range(count):
        first = len(left)
        level = [0]  # depth of each node
        at = first
        while at < first + len(level):
            grows = level[at - first] < depth and random.random() < 0.8
            left.append(first + len(level) if grows else -1)
            feature.append(int(random.integers(COLUMNS)) if grows else -1)
            coded = grows and feature[-1] == 3
            threshold.append(0 if coded or not grows else random.normal())
            missing.append(bool(grows and random.random() < 0.5))
            by_code.append(coded)
            cover.append(random.exponential() if covers is None else covers)
            value.append(random.normal(size=1 if not shared else outputs) * (not grows))
            if coded:
                chosen = random.choice(6, random.integers(0, 4), replace=False)
                pairs += [(at, int(code)) for code in sorted(chosen)]
            if grows:
                level += [level[at - first] + 1] * 2
            at += 1
        start.append(len(left))
        output.append(-1 if shared else tree % outputs)
    codes = np.asarray(pairs, dtype=np.int32).reshape(-1, 2)
    return Trees(
        start=np.asarray(start, dtype=np.int32),
        output=np.asarray(output, dtype=np.int32),
        left=np.asarray(left, dtype=np.int32),
        feature=np.asarray(feature, dtype=np.int32),
        threshold=np.asarray(threshold, dtype=np.float32),
        missing_left=np.asarray(missing),
        by_code=np.asarray(by_code),
        code_node=codes[:, 0],
        code=codes[:, 1],
        cover=np.asarray(cover, dtype=float),
        value=np.asarray(value),
    )


def explanation_of(trees, *, outputs=1):
    """Name what the trees need around them."""
    return Explanation(
        features=tuple(f"f{number}" for number in range(COLUMNS)),
        classes=tuple(range(max(2, outputs))),
        link="logistic" if outputs == 1 else "softmax",
        base=np.linspace(0.5, 1, outputs),
        trees=trees,
    )


def random_rows(seed, count=12):
    """Make rows with missing values, and codes that no split has."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, COLUMNS)).astype(np.float32)
    rows[:, 3] = random.integers(-1, 8, count)
    rows[random.random(rows.shape) < 0.2] = np.nan
    return rows


def goes_left(trees, node, x):
    """Say which way one value takes at one split."""
    if np.isnan(x):
        return trees.missing_left[node]
    if trees.by_code[node]:
        codes = trees.code[trees.code_node == node]
        x = float(x)
        if trees.codes_exact:
            return x in codes
        return (math.trunc(x) if trees.codes_truncate else math.floor(x)) in codes
    return x <= trees.threshold[node]


def expectation(trees, node, *, row, known):
    """Ask the definition: both ways at an unknown feature, by their covers."""
    if trees.left[node] < 0:
        return trees.value[node]
    children = [trees.left[node], trees.left[node] + 1]
    answers = [expectation(trees, one, row=row, known=known) for one in children]
    if trees.feature[node] in known:
        return answers[not goes_left(trees, node, row[trees.feature[node]])]
    cover = trees.cover[children]
    share = cover / cover.sum() if cover.sum() else np.full(2, 0.5)
    return share[0] * answers[0] + share[1] * answers[1]


def shapley(worth):
    """Enumerate all subsets; float64 [COLUMNS, ...]."""
    values = {
        subset: worth(set(subset))
        for size in range(COLUMNS + 1)
        for subset in combinations(range(COLUMNS), size)
    }
    found = []
    for feature in range(COLUMNS):
        total = 0
        for subset, value in values.items():
            if feature in subset:
                continue
            weight = math.factorial(len(subset)) * math.factorial(
                COLUMNS - len(subset) - 1
            )
            more = values[tuple(sorted({*subset, feature}))]
            total = total + weight * (more - value) / math.factorial(COLUMNS)
        found.append(total)
    return np.asarray(found)


def by_definition(trees, row, *, outputs):
    """Compute expected margins and contributions of one row; [outputs], [outputs, F]"""

    def worth(known):
        margins = np.zeros(outputs)
        for root, output in zip(trees.start[:-1], trees.output, strict=True):
            answer = expectation(trees, root, row=row, known=known)
            margins += answer if output < 0 else answer * np.eye(outputs)[output]
        return margins

    return worth(set()), shapley(worth).T


@pytest.mark.parametrize("reading", ["downward", "truncate", "exact"])
@pytest.mark.parametrize(
    ("outputs", "shared"), [(1, False), (3, False), (3, True)], ids=str
)
@pytest.mark.parametrize("seed", range(4))
def test_contributions_are_what_the_definition_gives(seed, outputs, shared, reading):
    """All subsets of features are enumerated, on trees that repeat features."""
    trees = random_trees(seed, outputs=outputs, shared=shared)
    trees = replace(
        trees, codes_truncate=reading == "truncate", codes_exact=reading == "exact"
    )
    explainer = Explainer(explanation_of(trees, outputs=outputs))
    rows = random_rows(seed)
    rows[0, 3] = -0.5  # a code by truncation alone
    rows[1, 3] = 1.5  # none where codes are exact
    found = explainer.contributions(rows)
    for row, one in zip(rows, found, strict=True):
        expected, values = by_definition(trees, row, outputs=outputs)
        base = np.linspace(0.5, 1, outputs)
        np.testing.assert_allclose(explainer.expected - base, expected, atol=1e-12)
        np.testing.assert_allclose(one, values, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_expected_and_contributions_add_up_to_the_margin(seed):
    """To float64 rounding, on deep trees, and the margin is computed another way."""
    trees = random_trees(seed, count=30, depth=12, outputs=2, shared=True)
    explainer = Explainer(explanation_of(trees, outputs=2))
    rows = random_rows(seed, 50)
    whole = explainer.expected + explainer.contributions(rows).sum(axis=2)
    np.testing.assert_allclose(whole, explainer.margin(rows), rtol=1e-9, atol=1e-12)


def test_margin_follows_each_row_to_its_leaves():
    """Every row is walked by hand."""
    trees = random_trees(7, outputs=1)
    rows = random_rows(7, 40)
    found = Explainer(explanation_of(trees)).margin(rows)[:, 0]
    for row, margin in zip(rows, found, strict=True):
        total = 0.5
        for node in trees.start[:-1]:
            while trees.left[node] >= 0:
                way = goes_left(trees, node, row[trees.feature[node]])
                node = trees.left[node] + (not way)
            total += trees.value[node, 0]
        assert margin == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("features", [1, 2, 7, 15, 60])
def test_long_paths_are_exact(features):
    """All features must hold: alike in everything, each has the same part."""
    nodes = 2 * features + 1
    split = np.arange(nodes) % 2 == 0
    split[-1] = False  # 0, 2, 4, ... are splits, their left children leaves
    holds = 0.9  # share of rows that hold at each split
    depth = np.repeat(np.arange(features + 1), 2)[1:]
    last = np.zeros((nodes, 1))
    last[-1] = 1.0
    trees = Trees(
        start=np.array([0, nodes], dtype=np.int32),
        output=np.zeros(1, dtype=np.int32),
        left=np.where(split, np.arange(nodes) + 1, -1).astype(np.int32),
        feature=np.where(split, np.arange(nodes) // 2, -1).astype(np.int32),
        threshold=np.zeros(nodes, dtype=np.float32),
        missing_left=np.zeros(nodes, dtype=bool),
        by_code=np.zeros(nodes, dtype=bool),
        code_node=np.zeros(0, dtype=np.int32),
        code=np.zeros(0, dtype=np.int32),
        cover=holds**depth * np.where(np.arange(nodes) % 2, (1 - holds) / holds, 1.0),
        value=last,
    )
    explainer = Explainer(
        Explanation(
            features=tuple(str(number) for number in range(features)),
            classes=(0, 1),
            link="logistic",
            base=np.zeros(1),
            trees=trees,
        )
    )
    expected = holds**features
    np.testing.assert_allclose(explainer.expected, expected, rtol=1e-12)
    rows = np.ones((2, features), dtype=np.float32)
    rows[1] = -1
    every, none = explainer.contributions(rows)[:, 0]
    np.testing.assert_allclose(every, (1 - expected) / features, rtol=1e-11)
    np.testing.assert_allclose(none, -expected / features, rtol=1e-11)


def test_a_row_on_the_threshold_goes_left():
    """One float32 above goes right; the contribution is the difference by cover."""
    trees = one_split(threshold=0.1, cover=(3, 1), value=(-1.0, 1.0))
    explainer = Explainer(explanation_of(trees))
    on = np.float32(0.1)
    rows = np.zeros((2, COLUMNS), dtype=np.float32)
    rows[:, 1] = on, np.nextafter(on, np.float32(1))
    # Expected is 0.5 + 3/4 * -1 + 1/4 * 1 = 0.
    np.testing.assert_allclose(explainer.expected, [0.0], atol=1e-15)
    np.testing.assert_allclose(explainer.margin(rows)[:, 0], [-0.5, 1.5])
    assert explainer.contributions(rows)[:, 0].tolist() == [
        [0, -0.5, 0, 0],
        [0, 1.5, 0, 0],
    ]


def one_split(*, threshold, cover, value, **options):
    """Make one tree of one split on the second feature."""
    return Trees(
        start=np.array([0, 3], dtype=np.int32),
        output=np.array([0], dtype=np.int32),
        left=np.array([1, -1, -1], dtype=np.int32),
        feature=np.array([1, -1, -1], dtype=np.int32),
        threshold=np.array([threshold, 0, 0], dtype=np.float32),
        missing_left=np.array([True, False, False]),
        by_code=np.zeros(3, dtype=bool),
        code_node=np.zeros(0, dtype=np.int32),
        code=np.zeros(0, dtype=np.int32),
        cover=np.array([sum(cover), *cover], dtype=float),
        value=np.array([[0.0], [value[0]], [value[1]]]),
        **options,
    )


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, [np.nan]),
        ({"missing": -999.0}, [np.nan, -999.0]),
        ({"zero_is_missing": (1,)}, [np.nan, 0.0, -0.0, 1e-36]),
    ],
    ids=["nan", "a number", "zero"],
)
def test_missing_values_go_where_the_split_says(options, missing):
    """And nothing else does: the others are above the threshold, to the right."""
    trees = one_split(threshold=-2000, cover=(1, 1), value=(1.0, -1.0), **options)
    values = [*missing, 5.0, 1e-34, -998.0]
    rows = np.zeros((len(values), COLUMNS), dtype=np.float32)
    rows[:, 1] = values
    found = Explainer(explanation_of(trees)).contributions(rows)[:, 0, 1]
    assert found.tolist() == [1.0] * len(missing) + [-1.0] * 3


@pytest.mark.parametrize("cover", [(0, 0), (0, 5), (5, 0)])
def test_branches_without_rows_do_no_harm(cover):
    """No training row ever went there: both ways alike, or all one way."""
    trees = one_split(threshold=0, cover=cover, value=(2.0, 4.0))
    explainer = Explainer(explanation_of(trees))
    rows = np.asarray([[0, -1, 0, 0], [0, 1, 0, 0]], dtype=np.float32)
    expected = {(0, 0): 3.5, (0, 5): 4.5, (5, 0): 2.5}[cover]
    assert explainer.expected.tolist() == [expected]
    found = explainer.contributions(rows)[:, 0, 1]
    assert found.tolist() == [2.5 - expected, 4.5 - expected]


def test_trees_without_covers_are_the_definition_too():
    """Deep trees whose covers are all zero."""
    trees = random_trees(3, covers=0.0)
    explainer = Explainer(explanation_of(trees))
    row = random_rows(3, 1)[0]
    np.testing.assert_allclose(
        explainer.contributions(row[None])[0],
        by_definition(trees, row, outputs=1)[1],
        atol=1e-12,
    )


def test_single_leaves_explain_nothing():
    """Their value is expected of every row."""
    trees = random_trees(0, depth=0, count=3)
    explainer = Explainer(explanation_of(trees))
    rows = random_rows(0)
    assert not explainer.contributions(rows).any()
    np.testing.assert_allclose(explainer.expected, 0.5 + trees.value.sum())
    np.testing.assert_allclose(explainer.margin(rows), 0.5 + trees.value.sum())


def test_one_class_of_two_is_the_other_turned_around():
    """And with a margin per class, each has contributions of its own."""
    rows = random_rows(1)
    two = Explainer(explanation_of(random_trees(1)))
    assert np.array_equal(two.of_class(rows, 1), two.contributions(rows)[:, 0])
    assert np.array_equal(two.of_class(rows, 0), -two.of_class(rows, 1))
    three = Explainer(explanation_of(random_trees(1, outputs=3), outputs=3))
    assert np.array_equal(three.of_class(rows, 2), three.contributions(rows)[:, 2])
    with pytest.raises(ValueError, match="class 3"):
        three.of_class(rows, 3)


@pytest.fixture
def linear():
    """Return a scaled column, two categories of one feature, and one filled."""
    return Explanation(
        features=("amount", "country", "age"),
        classes=("good", "bad"),
        link="logistic",
        base=np.array([0.25]),
        linear=Linear(
            source=np.array([0, 1, 1, 2], dtype=np.int32),
            slope=np.array([0.5, 1, 1, 2]),
            offset=np.array([-1.0, 0, 0, 1]),
            by_category=np.array([False, True, True, False]),
            category=np.array([np.nan, 3, 7, np.nan]),
            filled=np.array([np.nan, 0, 0, 9]),
            mean=np.array([0.0, 0.25, 0.5, 3]),
            coefficient=np.array([[2.0, 4, -8, 0.5]]),
        ),
    )


def test_linear_contributions_are_coefficients_times_distance(linear):
    """Summed back to the feature that each column comes from; worked out by hand."""
    explainer = Explainer(linear)
    # 0.25 + 4 * 0.25 - 8 * 0.5 + 0.5 * 3
    assert explainer.expected.tolist() == [-1.25]
    rows = np.array([[4, 3, 0], [0, 7, np.nan], [2, 5, 1]], dtype=np.float32)
    found = explainer.contributions(rows)[:, 0]
    assert found.tolist() == [
        [2 * 1, 4 * 0.75 - 8 * -0.5, 0.5 * (1 - 3)],
        [2 * -1, 4 * -0.25 - 8 * 0.5, 0.5 * (9 - 3)],
        [2 * 0, 4 * -0.25 - 8 * -0.5, 0.5 * (3 - 3)],
    ]
    margin = explainer.margin(rows)
    np.testing.assert_allclose(found.sum(axis=1, keepdims=True) - 1.25, margin)
    second = 1 / (1 + np.exp(-margin[:, 0]))
    np.testing.assert_allclose(explainer.probabilities(rows)[:, 1], second)


def test_a_row_that_the_model_does_not_answer_is_not_explained(linear):
    """A missing amount, which nothing fills, leaves no feature a contribution."""
    rows = np.array([[np.nan, 3, 0], [4, 3, 0]], dtype=np.float32)
    found = Explainer(linear).contributions(rows)
    assert np.isnan(found[0]).all()
    assert not np.isnan(found[1]).any()


def test_a_reason_is_said_where_nothing_is_to_be_computed():
    """The error is one line with the reason."""
    none = unexplained("networks mix them", features=("a",), classes=(0, 1))
    with pytest.raises(RepositoryError, match="networks mix them"):
        Explainer(none)


def test_rows_of_another_width_are_refused(linear):
    """One feature too few."""
    with pytest.raises(ValueError, match=r"\[N, 3\]"):
        Explainer(linear).contributions(np.zeros((1, 2), dtype=np.float32))

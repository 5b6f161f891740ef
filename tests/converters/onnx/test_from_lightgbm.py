"""A converted LightGBM model answers as its source, or is refused with the reason."""

import lightgbm
import numpy as np
import pytest

from converters.onnx.from_lightgbm import onnx_from_lightgbm
from converters.parity.runner import onnx_runner
from converters.sources.lightgbm import LightGbmModel
from converters.trees.tree_ensemble import round_down
from tests.support.converters.parity import compare
from tollgate.errors import ConversionError


def training_rows(rows=1500, *, gaps=0.0, seed=0):
    """Make money, flags, counts and codes, and labels that depend on them."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 5)).astype(np.float32)
    features[:, 1] = random.integers(0, 12, rows)
    features[:, 2] = features[:, 2].round(1)
    features[:, 3] = random.poisson(1, rows)
    label = np.isin(features[:, 1], (1, 4, 7)) ^ (features[:, 0] > 0.4)
    features[random.random(features.shape) < gaps] = np.nan
    return features, label.astype(np.int8)


def trained(features, label, *, rounds=15, categories=(), **parameters):
    """Train a small model on one thread."""
    settings = {"objective": "binary", "num_leaves": 12, "num_threads": 1}
    data = lightgbm.Dataset(
        features, label, categorical_feature=list(categories), free_raw_data=False
    )
    quiet = {"verbosity": -1, "deterministic": True, "seed": 0}
    return lightgbm.train({**settings, **quiet, **parameters}, data, rounds)


def proof(booster, samples):
    """Compare a model with its converted form on samples and every split."""
    model = LightGbmModel(booster)
    return compare(
        model.predict,
        onnx_runner(model.convert()),
        probes=model.probes(samples),
        thresholds=(0.1, 0.35, 0.5, 0.8),
    )


SETTINGS = {
    "library defaults": {},
    "steeper sigmoid": {"sigmoid": 2.0},
    "dropped trees": {"boosting": "dart"},
    "forest": {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
    "no missing values": {"use_missing": False},
    "zero is missing": {"zero_as_missing": True},
    "categories as sets": {
        "categories": (1,),
        "max_cat_to_onehot": 1,
        "min_data_per_group": 5,
        "cat_smooth": 1.0,
    },
    "categories one by one": {
        "categories": (1,),
        "max_cat_to_onehot": 50,
        "min_data_per_group": 5,
        "cat_smooth": 1.0,
    },
    "single leaves": {"min_data_in_leaf": 100_000},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_every_kind_of_tree_agrees_with_its_source(name, gaps):
    """Whatever missing means and splits are: no flip, float32 rounding alone."""
    features, label = training_rows(gaps=gaps)
    report = proof(trained(features, label, **SETTINGS[name]), features)
    report.check()
    assert report.max_delta < 1e-6
    assert report.batch_delta == 0
    assert ("split" in report.kinds) == (name != "single leaves")


def test_three_classes_agree_in_every_column():
    """Multi-class: softmax over the classes' trees."""
    features, _ = training_rows(gaps=0.2)
    label = (np.nan_to_num(features[:, 1]) % 3).astype(int)
    booster = trained(features, label, objective="multiclass", num_class=3)
    report = proof(booster, features)
    report.check()
    assert len(onnx_runner(onnx_from_lightgbm(booster))(features)[0]) == 3


def test_rows_on_the_boundary_go_left_as_in_the_source():
    """
    A threshold between two float32 neighbours, nearer to the upper: `<=` in float64
    keeps the upper right; rounded to nearest, the row on it would move left.
    """
    lower = np.float32(0.1)
    upper = np.nextafter(lower, np.float32(1))
    between = float(lower) + 0.9 * (float(upper) - float(lower))
    features, label = training_rows()
    text = trained(features, label, rounds=1, num_leaves=2).model_to_string()
    lines = [
        f"threshold={between!r}"
        if line.startswith("threshold=")
        else "split_feature=0"
        if line.startswith("split_feature=")
        else line
        for line in text.splitlines()
        if not line.startswith("tree_sizes=")
    ]
    booster = lightgbm.Booster(model_str="\n".join(lines))
    rows = np.zeros((2, 5), dtype=np.float32)
    rows[:, 0] = lower, upper
    expected = booster.predict(rows)
    assert expected[0] != expected[1]
    assert np.float32(between) == upper  # what rounding to nearest would do
    found = onnx_runner(onnx_from_lightgbm(booster))(rows)[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-7)
    proof(booster, features).check()


@pytest.mark.parametrize("threshold", [0.1, -0.1, 1e-35, 1e300, -1e300, 0.0, 7.0, 1e39])
def test_a_rounded_threshold_splits_float32_as_before(threshold):
    """The largest float32 that is not above the threshold."""
    found = float(round_down(threshold))
    assert float(np.float32(found)) == found
    assert found <= threshold
    with np.errstate(over="ignore"):
        above = np.nextafter(np.float32(found), np.float32(np.inf))
    assert float(above) > threshold


def test_numbers_that_lightgbm_reads_as_zero_go_where_zero_goes():
    """|x| <= 1e-35 is 0 to it, also where a threshold lies in between."""
    features, label = training_rows(gaps=0.3)
    booster = trained(features, label, use_missing=False)
    assert " -1.0000000180025095e-35 " in booster.model_to_string()
    rows = np.zeros((6, 5), dtype=np.float32)
    rows[:, 0] = -2e-35, -1e-35, -1e-40, 1e-40, 1e-35, 2e-35
    found = onnx_runner(onnx_from_lightgbm(booster))(rows)[:, 1]
    np.testing.assert_allclose(found, booster.predict(rows), atol=1e-7)
    assert len(set(booster.predict(rows))) > 1


def test_an_early_stop_cuts_trees():
    """Trees after the best iteration do not count."""
    features, label = training_rows()
    booster = trained(features, label, rounds=30)
    booster.best_iteration = 4
    model = LightGbmModel(booster)
    assert model.facts.trees == 4
    expected = booster.predict(features, num_iteration=4)
    found = onnx_runner(model.convert())(features)[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_same_model_gives_the_same_bytes():
    """No names by chance."""
    booster = trained(*training_rows())
    assert onnx_from_lightgbm(booster) == onnx_from_lightgbm(booster)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"objective": "cross_entropy"}, "objective is 'cross_entropy'; conv"),
        (
            {"objective": "multiclassova", "num_class": 2},
            "objective is 'multiclassova'; converted",
        ),
        ({"linear_tree": True}, "linear_tree: leaves are linear models"),
    ],
)
def test_what_would_not_convert_faithfully_is_refused(parameters, words):
    """The message names the setting, its value and what would do."""
    features, label = training_rows()
    with pytest.raises(ConversionError) as caught:
        onnx_from_lightgbm(trained(features, label, rounds=3, **parameters))
    assert str(caught.value).startswith(words)


def test_zero_missing_in_some_splits_only_is_refused():
    """One input cannot be both zero and missing."""
    features, label = training_rows()
    text = trained(features, label, zero_as_missing=True).model_to_string()
    head, _, tail = text.partition("\ndecision_type=")
    line, _, rest = tail.partition("\n")
    mixed = "\ndecision_type=" + " ".join(["10"] * len(line.split())) + "\n"
    booster = lightgbm.Booster(
        model_str="\n".join(
            one
            for one in (head + mixed + rest).splitlines()
            if not one.startswith("tree_sizes=")
        )
    )
    with pytest.raises(ConversionError, match=r"^column \d: zero_as_missing holds"):
        onnx_from_lightgbm(booster)

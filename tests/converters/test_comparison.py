"""Simple models are judged on the held-out rows, and the best kind is trained."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from converters.comparison import compare_kinds, simple_models
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec

TEXT = """
version: 1
product: shop
amount: false
fields:
  - {name: tells, type: number, decimals: 3}
  - {name: noise, type: number, decimals: 3}
  - {name: word, type: category, vocabulary: [a, b, c]}
features:
  - {name: tells, field: tells, default: .nan}
  - {name: noise, field: noise, default: .nan}
  - {name: word, category: word}
"""


@pytest.fixture
def spec(tmp_path: Path) -> FeatureSpec:
    """Return features of two numbers and a word."""
    (tmp_path / "features.yaml").write_text(TEXT)
    return load_spec(tmp_path / "features.yaml")


def rows(count, *, share, seed):
    """Draw rows in which a low first number predicts a rare outcome."""
    random = np.random.default_rng(seed)
    label = (random.random(count) < share).astype(np.int8)
    features = random.normal(size=(count, 3)).astype(np.float32)
    features[:, 0] -= 2.5 * label
    features[:, 2] = random.integers(-1, 3, count)
    features[random.random(count) < 0.1, 1] = np.nan
    return features, label, random.random(count) < 0.3


def test_the_best_column_is_judged_as_scikit_learn_does(spec):
    """A column that falls with the outcome counts turned around."""
    features, label, test = rows(4000, share=0.2, seed=0)
    found = simple_models(features, label, spec=spec, test=test, train=~test)
    assert [one.name for one in found] == [
        "column tells alone",
        "a plain logistic regression",
        "a plain boosting",
    ]
    expected = roc_auc_score(label[test], -features[test, 0])
    assert found[0].auc == pytest.approx(expected, abs=1e-12)
    assert min(one.auc for one in found) > 0.9


def test_a_column_of_codes_is_ranked_by_its_outcomes(spec):
    """Shares of the rows to learn from, shrunk as if each code had ten rows more."""
    features, label, test = rows(4000, share=0.3, seed=1)
    features[:, 0] = 0
    features[:, 2] = np.where(label == 1, 0, features[:, 2])
    found = simple_models(features, label, spec=spec, test=test, train=~test)
    learnt = pd.DataFrame({"code": features[~test, 2], "label": label[~test]})
    groups = learnt.groupby("code")["label"].agg(["sum", "count"])
    shares = (groups["sum"] + 10 * learnt["label"].mean()) / (groups["count"] + 10)
    expected = roc_auc_score(label[test], shares.loc[features[test, 2]])
    assert found[0].name == "column word alone"
    assert found[0].auc == pytest.approx(expected, abs=1e-12)


def test_rows_that_boosting_ranks_badly_get_a_regression(spec):
    """Three positives of a thousand; the old default was boosting whatever came."""
    features, label, _ = rows(6000, share=0.003, seed=2)
    none = np.zeros(len(label), np.int64)
    found = compare_kinds(features, label, spec=spec, time_us=none, seed=0)
    assert {one.name for one in found} == {"boosting", "deep-boosting", "logistic"}
    assert found[0].name == "logistic"
    assert found[0].auc == max(one.auc for one in found)


def test_too_few_outcomes_are_not_compared(spec):
    """Two positives are fewer than folds."""
    features, label, _ = rows(200, share=0.2, seed=3)
    label[:] = 0
    label[:2] = 1
    none = np.zeros(len(label), np.int64)
    assert compare_kinds(features, label, spec=spec, time_us=none, seed=0) == ()

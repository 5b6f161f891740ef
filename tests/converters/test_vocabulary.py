"""The categories in the record are those that the model was trained with."""

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from xgboost import XGBClassifier

from converters.model import Vocabulary
from converters.sources.opening import open_source
from converters.sources.worker import model_of

CHANNEL = ("app", "shop", "web")
LEVEL = (3, 7, 9)


@pytest.fixture(scope="module")
def frame():
    """Return a table with a number and two columns of categories, and labels."""
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "amount": random.normal(size=600),
            "channel": pd.Categorical(random.choice(CHANNEL, 600)),
            "level": pd.Categorical(random.choice(LEVEL, 600)),
        }
    )
    noise = random.random(600) < 0.1
    return table, ((table.channel == "app") ^ (table.level == 9) ^ noise).astype(int)


def coded(table):
    """Return the table as a server sees it: codes instead of categories."""
    return np.stack(
        [table.amount, table.channel.cat.codes, table.level.cat.codes], axis=1
    ).astype(np.float32)


def test_categories_of_a_data_frame_are_kept_by_name(frame, tmp_path):
    """XGBoost and LightGBM: the feature holds the position in the list; files too."""
    table, label = frame
    boosted = XGBClassifier(n_estimators=5, n_jobs=1, enable_categorical=True)
    boosted.fit(table, label)
    light = lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1)
    light.fit(table, label)
    expected = {
        1: Vocabulary(codes=True, known=CHANNEL),
        2: Vocabulary(codes=True, known=LEVEL),
    }
    assert model_of(boosted).facts.categories == expected
    assert model_of(light).facts.categories == expected
    boosted.save_model(tmp_path / "model.json")
    light.booster_.save_model(tmp_path / "model.txt")
    for name in ("model.json", "model.txt"):
        with open_source(tmp_path / name) as source:
            assert source.facts.categories == expected


def test_names_that_xgboost_cut_off_are_not_kept(frame):
    """Beyond ASCII its file has half a name; then only the codes are known."""
    table, label = frame
    renamed = table.assign(channel=table.channel.cat.rename_categories({"web": "wéb"}))
    boosted = XGBClassifier(n_estimators=5, n_jobs=1, enable_categorical=True)
    found = model_of(boosted.fit(renamed, label)).facts.categories
    assert not found[1].codes
    assert set(found[1].known) <= {0, 1, 2}
    assert found[2] == Vocabulary(codes=True, known=LEVEL)


def test_codes_without_names_are_those_that_splits_test(frame):
    """Trained on numbers: what the trees know of, as numbers."""
    table, label = frame
    boosted = XGBClassifier(
        n_estimators=5, n_jobs=1, feature_types=["q", "c", "c"], enable_categorical=True
    ).fit(coded(table), label)
    found = model_of(boosted).facts.categories
    assert set(found) == {1, 2}
    assert all(not one.codes for one in found.values())
    assert all(set(one.known) <= {0, 1, 2} and one.known for one in found.values())


def test_encoders_name_their_categories_by_feature(frame):
    """Behind column choices and scalers, but not behind what mixes columns."""
    table, label = frame
    rows = coded(table)
    prepared = ColumnTransformer(
        [
            ("number", StandardScaler(), [0]),
            ("level", OrdinalEncoder(), [2]),
            ("channel", Pipeline([("encoded", OneHotEncoder())]), [1]),
        ]
    )
    model = Pipeline([("prepared", prepared), ("model", LogisticRegression())])
    known = Vocabulary(codes=False, known=(0.0, 1.0, 2.0))
    found = model_of(model.fit(rows, label)).facts.categories
    assert found == {1: known, 2: known}


def test_a_model_without_categories_has_none(frame):
    """A number is no category, however few values it has."""
    table, label = frame
    rows = coded(table)
    for model in (
        XGBClassifier(n_estimators=2, n_jobs=1),
        lightgbm.LGBMClassifier(n_estimators=2, verbose=-1),
        LogisticRegression(),
    ):
        assert model_of(model.fit(rows, label)).facts.categories == {}


def test_ordered_categories_of_lightgbm_have_their_words(frame):
    """LightGBM takes an ordered category for a number, and keeps its words."""
    table, label = frame
    order = ["web", "app", "shop"]
    ordered = table.assign(channel=pd.Categorical(table.channel, order, ordered=True))
    model = lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1)
    facts = model_of(model.fit(ordered, label)).facts
    assert facts.unplaced == ()
    assert facts.categories[1] == Vocabulary(codes=True, known=tuple(order))
    assert facts.categories[2] == Vocabulary(codes=True, known=LEVEL)


def test_words_that_two_columns_could_have_are_given_to_neither(frame):
    """A column of small whole numbers may be the ordered category, or the other."""
    table, label = frame
    order = ["web", "app", "shop"]
    ordered = table.assign(
        channel=pd.Categorical(table.channel, order, ordered=True),
        amount=np.arange(len(table)) % 3,
    )
    model = lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1)
    facts = model_of(model.fit(ordered, label)).facts
    assert facts.unplaced == (tuple(order), LEVEL)
    assert not any(one.codes for one in facts.categories.values())

"""Rankers convert to graphs over lists, proven in score and in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnxruntime
import polars as pl
import pytest
import xgboost
from sklearn.linear_model import LinearRegression

from converters.conversion import Conversion, convert_file, convert_model
from converters.folder import write_converted
from converters.parity.order import misplaced
from converters.purpose import Purpose, purpose_of
from converters.sources.lightgbm import LightGbmModel
from converters.sources.sklearn import SklearnModel
from converters.sources.xgboost import XGBoostModel
from tests.support.products.small_shop import release_shop, small_catalogue, write_shop
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.ranking.candidates import CANDIDATES, feature_names
from tollgate.schema import CANDIDATE_FEATURES, RELEVANCE
from tollgate.server.publishing import publish

NAMES = feature_names(small_catalogue())
LISTS, LONG = 40, 50
CHANCE = np.random.default_rng(5)
# Few distinct values, so that many candidates of a list have equal scores.
ROWS = np.round(CHANCE.normal(size=(LISTS * LONG, len(NAMES))), 1).astype(np.float32)
GRADES = np.clip(np.rint(1.5 + ROWS[:, 0] - ROWS[:, 3]), 0, 4).astype(int)

Train = Callable[[], Any]


def lightgbm_model(objective: str) -> LightGbmModel:
    """Train a few trees on lists of 50."""
    parameters = {"objective": objective, "verbosity": -1, "num_threads": 1, "seed": 1}
    data = lightgbm.Dataset(ROWS, GRADES, group=[LONG] * LISTS)
    return LightGbmModel(lightgbm.train(parameters, data, 10))


def xgboost_model(objective: str) -> XGBoostModel:
    """Train a few trees on lists of 50, by the estimator."""
    ranker = xgboost.XGBRanker(
        objective=objective, n_estimators=10, max_depth=4, random_state=1, n_jobs=1
    )
    return XGBoostModel(ranker.fit(ROWS, GRADES, group=[LONG] * LISTS))


def linear_model() -> SklearnModel:
    """Fit a weighted sum."""
    return SklearnModel(LinearRegression().fit(ROWS.astype(float), GRADES))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A released product that ranks."""
    spec: FeatureSpec = write_shop(tmp_path / "models")
    release_shop(tmp_path / "models", spec)
    return tmp_path / "models"


@pytest.mark.parametrize(
    "train",
    [
        lambda: lightgbm_model("lambdarank"),
        lambda: lightgbm_model("rank_xendcg"),
        lambda: xgboost_model("rank:ndcg"),
        lambda: xgboost_model("rank:pairwise"),
    ],
)
def test_lists_have_the_order_of_the_source(train: Train) -> None:
    """Each list is ordered by NumPy here, from the library's own scores."""
    source = train()
    done = convert_model(source, origin="it", purpose=Purpose(), sample=None)
    session = onnxruntime.InferenceSession(done.model)
    assert session.get_inputs()[0].shape == ["N", "C", len(NAMES)]
    lists = ROWS.reshape(LISTS, LONG, -1)
    (found,) = session.run([RELEVANCE], {CANDIDATE_FEATURES: lists})
    wanted = source.predict(ROWS).reshape(LISTS, LONG)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    rounded = wanted.astype(np.float32)
    for one, expected in zip(found, rounded, strict=True):
        order = np.argsort(-one, kind="stable")
        assert (np.diff(expected[order]) <= 1e-6).all()
    report = done.proven.report
    assert report.passed
    assert report.order is not None
    assert (report.order.wrong, report.order.candidates) == (0, CANDIDATES)


def test_candidates_that_fill_a_list_change_nothing() -> None:
    """The relevance of the others has the same bits."""
    done = convert_model(
        lightgbm_model("lambdarank"), origin="it", purpose=Purpose(), sample=None
    )
    session = onnxruntime.InferenceSession(done.model)
    lists = ROWS.reshape(LISTS, LONG, -1)
    (found,) = session.run([RELEVANCE], {CANDIDATE_FEATURES: lists})
    filled = np.pad(lists, ((0, 0), (0, CANDIDATES - LONG), (0, 0)))
    (padded,) = session.run([RELEVANCE], {CANDIDATE_FEATURES: filled})
    assert padded[:, :LONG].tobytes() == found.tobytes()


def test_a_linear_model_ranks_in_a_product_that_ranks(shop: Path) -> None:
    """The product makes it a ranker: its objective does not say so."""
    purpose = purpose_of(shop, "shop")
    assert (purpose.names, purpose.ranks) == (NAMES, True)
    done = convert_model(linear_model(), origin="it", purpose=purpose, sample=None)
    session = onnxruntime.InferenceSession(done.model)
    lists = ROWS.reshape(LISTS, LONG, -1)
    (found,) = session.run([RELEVANCE], {CANDIDATE_FEATURES: lists})
    wanted = linear_model().predict(ROWS.astype(float)).reshape(LISTS, LONG)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_rankers_file_is_converted_and_published(tmp_path: Path, shop: Path) -> None:
    """From LightGBM's text to a version that a real server answers with."""
    booster = lightgbm_model("lambdarank")._booster
    text = tmp_path / "ranker.txt"
    booster.save_model(text)
    sample = tmp_path / "rows.parquet"
    pl.DataFrame(dict(zip(NAMES, ROWS.T, strict=True))).write_parquet(sample)
    request = Conversion(
        source=text, purpose=purpose_of(shop, "shop"), sample=sample, columns=NAMES
    )
    write_converted(convert_file(request), tmp_path / "converted")
    proof = json.loads((tmp_path / "converted/parity.json").read_text())
    assert proof[0]["order"]["wrong"] == 0
    assert proof[0]["order"]["lists"] > 1
    done = publish(tmp_path / "converted", repository=shop, product="shop")
    assert (done.step, done.version) == ("shop_model", 2)


def test_an_xgboost_file_is_converted(tmp_path: Path) -> None:
    """The reader of the file knows the objective and its parameters."""
    path = tmp_path / "ranker.json"
    xgboost_model("rank:ndcg")._model.save_model(path)
    done = convert_file(Conversion(source=path))
    assert done.proven.passed
    assert done.proven.report.order is not None


def test_a_ranker_does_not_decide() -> None:
    """The reason names what it needs."""
    root = Path(__file__).resolve().parents[2] / "model_repository"
    purpose = purpose_of(root, "fraud")
    with pytest.raises(InputError, match="orders candidates, and the product decides"):
        convert_model(
            lightgbm_model("lambdarank"), origin="it", purpose=purpose, sample=None
        )


@pytest.mark.parametrize(
    ("found", "moved", "wrong"),
    [
        ([3.0, 2.0, 1.0, 1.0], 0, 0),
        ([3.0, 2.0, 1.0, 1.0 + 1e-7], 2, 0),  # two equal candidates change places
        ([2.0, 3.0, 1.0, 1.0], 2, 1),  # the best comes second
        ([3.0, 2.0, float("nan"), 1.0], 2, 0),  # no number comes last
        ([0.0, 2.0, 1.0, 1.0], 4, 3),  # the best comes last
    ],
)
def test_places_are_counted_as_by_hand(
    found: list[float], moved: int, wrong: int
) -> None:
    """Four candidates with the scores 3, 2, 1 and 1 by the source."""
    expected = np.array([3.0, 2.0, 1.0, 1.0])
    assert misplaced(expected, np.array(found), unit=1.0, tolerance=1e-5) == (
        moved,
        wrong,
    )

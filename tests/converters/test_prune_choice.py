"""What to prune is read, chosen and judged: by number, or the fastest that is good."""

import lightgbm
import msgspec
import numpy as np
import pytest
import xgboost
from sklearn.metrics import roc_auc_score

from converters.compression import prune_sweep
from converters.compression.compression_cost import Judge
from converters.compression.prune import halved, prune, read_pruning
from converters.compression.prune_sweep import (
    Point,
    choose,
    depth_of,
    draw_sweep,
    sweep_table,
)
from converters.sources.worker import model_of
from tollgate.errors import InputError, TradeError
from tollgate.repository.models.artifact_file import Figures, Gate, Trade

GENEROUS = Gate(flips=1.0, auc_loss=1.0, ap_loss=1.0)


@pytest.fixture(scope="module")
def data():
    """Rows, and a label of two classes."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(1500, 5)).astype(np.float32)
    margin = rows[:, 0] + rows[:, 1] * rows[:, 2] + random.normal(size=len(rows))
    return rows, (margin > 1).astype(int)


def boosted(data, **parameters):
    """Train XGBoost on one thread."""
    settings = {"n_estimators": 12, "max_depth": 4, "n_jobs": 1}
    return xgboost.XGBClassifier(**settings | parameters).fit(*data)


def test_a_set_of_categories_is_one_split_on_a_path(data):
    """Counted test by test, no limit of depth that a sweep tries would cut a thing."""
    rows, label = data[0].copy(), data[1]
    rows[:, 1] = np.random.default_rng(1).integers(0, 40, len(rows))
    label = label ^ (rows[:, 1] % 7 < 3)
    model = boosted(
        (rows, label),
        enable_categorical=True,
        feature_types=["q", "c", "q", "q", "q"],
    )
    source = model_of(model)
    assert max(source.facts.categories[1].known) > 20
    assert depth_of(source.convert()) == 4
    light = lightgbm.LGBMClassifier(n_estimators=4, max_depth=3, verbose=-1)
    light.fit(rows, label, categorical_feature=[1])
    assert depth_of(model_of(light).convert()) == 3


@pytest.mark.parametrize(
    ("text", "trees", "depth"), [("50", 50, None), ("50x4", 50, 4), ("x4", None, 4)]
)
def test_a_pruning_reads_as_trees_and_depth(text, trees, depth):
    """Either may be left out."""
    found = read_pruning(text)
    assert (found.trees, found.depth) == (trees, depth)


@pytest.mark.parametrize("text", ["", "0", "x", "50x", "x0", "-3", "4.5", "auto50"])
def test_another_pruning_is_refused_by_its_words(text):
    """One line that names the flag and the forms there are."""
    with pytest.raises(InputError, match=r"^prune: is .*50x4"):
        read_pruning(text)


def point(trees, depth, *, us, auc=0.9, flips=0):
    """Make a candidate of a model of 10 trees that answers 1,000 rows."""
    whole = Figures(auc=0.9, average_precision=0.5, us_per_row={32: 9.0}, size_bytes=9)
    after = msgspec.structs.replace(whole, auc=auc, us_per_row={32: us})
    trade = Trade(
        kind="prune",
        detail="",
        rows=1000,
        flips=flips,
        max_delta=0.0,
        before=whole,
        after=after,
    )
    return Point(trees=trees, depth=depth, trade=trade)


def test_auto_takes_the_fastest_inside_the_gate():
    """The first that neither loses too much AUC nor changes too many decisions."""
    points = (
        point(2, None, us=1.0, auc=0.898),
        point(4, 2, us=2.0, flips=2),
        point(5, 3, us=3.0, auc=0.8995, flips=1),
        point(7, None, us=4.0),
        point(10, None, us=9.0),
    )
    assert choose(points, requested=None, gate=Gate()) == 2
    assert choose(points, requested=None, gate=Gate(flips=0.002)) == 1
    assert choose(points, requested=None, gate=Gate(auc_loss=0.01)) == 0
    assert choose(points, requested=(7, None), gate=Gate()) == 3


def test_auto_takes_nothing_slower_than_the_whole_model():
    """What is smaller and slower is no gain, and there is an error instead."""
    points = (
        point(2, None, us=1.0, flips=500),
        point(10, None, us=9.0),
        point(9, None, us=9.5),
    )
    with pytest.raises(TradeError, match="no candidate is faster and keeps the AUC"):
        choose(points, requested=None, gate=Gate())


def test_a_sweep_shows_what_else_there_was(data, tmp_path):
    """The requested pruning is a candidate, in the table and in the picture."""
    model = model_of(boosted(data, n_estimators=4, max_depth=2))
    judge = Judge(rows=data[0], label=data[1], thresholds=(0.5,))
    found = prune(model, "3x1", judge=judge, gate=Gate())
    points = found.sweep.points
    tried = {(one.trees, one.depth) for one in points}
    assert tried == {(n, depth) for n in (1, 2, 3, 4) for depth in (None, 1)}
    assert [one.us for one in points] == sorted(one.us for one in points)
    taken = points[found.sweep.chosen]
    assert (taken.trees, taken.depth) == (3, 1)
    assert found.trade == taken.trade
    wanted = model.pruned(trees=3, depth=1).predict(data[0])
    np.testing.assert_array_equal(found.model.predict(data[0]), wanted)
    assert found.trade.after.auc == pytest.approx(roc_auc_score(data[1], wanted[:, 1]))
    assert sweep_table(found.sweep).row_count == len(points)
    draw_sweep(found.sweep, tmp_path / "prune.png")
    assert (tmp_path / "prune.png").read_bytes()[:4] == b"\x89PNG"


def test_a_pruning_by_number_needs_no_labels(data):
    """Flips are counted, no AUC is stated, no sweep is made; `auto` needs them."""
    model = model_of(boosted(data))
    judge = Judge(rows=data[0], label=None, thresholds=(0.5,))
    found = prune(model, "5x2", judge=judge, gate=Gate())
    wanted = model.pruned(trees=5, depth=2).predict(data[0])
    flips = ((wanted >= 0.5) != (model.predict(data[0]) >= 0.5))[:, 1].sum()
    assert (found.trade.flips, found.trade.rows) == (flips, len(data[0]))
    assert found.trade.after.auc is None
    assert found.sweep is None
    assert found.trade.detail == "5 of 12 trees, depth at most 2"
    with pytest.raises(InputError, match="needs a sample with labels"):
        prune(model, "auto", judge=judge, gate=Gate())


@pytest.fixture
def timed_by_size(monkeypatch):
    """Let a smaller model be the faster one, however busy the machine is."""

    def timed(models, *, turn_s):
        return [dict.fromkeys((1, 8, 32), 1e-3 * len(model)) for model in models]

    monkeypatch.setattr(prune_sweep, "timed", timed)


@pytest.mark.usefixtures("timed_by_size")
def test_auto_is_judged_on_rows_it_was_not_chosen_on(data):
    """The AUC is that of the other half; the trade says where it comes from."""
    model = model_of(boosted(data, n_estimators=6, max_depth=2))
    judge = Judge(rows=data[0], label=data[1], thresholds=(0.5,))
    found = prune(model, "auto", judge=judge, gate=GENEROUS)
    first, second = halved(judge)
    taken = found.sweep.points[found.sweep.chosen]
    assert (taken.trade.rows, found.trade.rows) == (len(first.rows), len(second.rows))
    score = found.model.predict(second.rows)[:, 1]
    assert found.trade.after.auc == pytest.approx(roc_auc_score(second.label, score))
    score = found.model.predict(first.rows)[:, 1]
    assert taken.auc == pytest.approx(roc_auc_score(first.label, score))
    assert found.trade.detail.endswith(
        f"; chosen on {len(first.rows)} other rows, seed 0"
    )


def test_halves_share_no_row_and_keep_the_classes(data):
    """Every row is in one half, each half has half of either class; always the same."""
    rows = np.arange(len(data[1]), dtype=np.float32)[:, None]
    judge = Judge(rows=rows, label=data[1], thresholds=(0.5,))
    halves = halved(judge)
    both = np.concatenate([one.rows[:, 0] for one in halves])
    assert sorted(both.astype(int)) == list(range(len(rows)))
    for one in halves:
        assert abs(2 * one.label.sum() - data[1].sum()) <= 1
        assert np.array_equal(one.label, data[1][one.rows[:, 0].astype(int)])
    for one, again in zip(halves, halved(judge), strict=True):
        assert np.array_equal(one.rows, again.rows)


@pytest.mark.usefixtures("timed_by_size")
def test_too_few_rows_of_a_class_are_not_halved_and_the_trade_says_so(data):
    """With 199 of a class a half would have 99: chosen and judged on the same rows."""
    frauds = np.flatnonzero(data[1] == 1)[:199]
    at = np.sort(np.concatenate([frauds, np.flatnonzero(data[1] == 0)[:400]]))
    judge = Judge(rows=data[0][at], label=data[1][at], thresholds=(0.5,))
    assert halved(judge) is None
    model = model_of(boosted(data, n_estimators=4, max_depth=1))
    found = prune(model, "auto", judge=judge, gate=GENEROUS)
    assert found.trade.rows == len(at)
    assert found.trade.detail.endswith("; chosen on the same rows")

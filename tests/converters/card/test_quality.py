"""Quality figures are those of scikit-learn; undefined ones are left out."""

import numpy as np
import pytest
from sklearn import metrics

from converters.card.quality import auc_interval, measure_quality
from converters.card.quality_record import Levels
from tollgate.errors import InputError

POLICY = Levels(names=("approve", "review", "decline"), thresholds=(0.35, 0.8))


def scored(rows=4000, *, seed=0, ties=False):
    """Make labels and the probabilities of a model that knows something of them."""
    chance = np.random.default_rng(seed)
    label = (chance.random(rows) < 0.15).astype(np.int64)
    margin = chance.normal(size=rows) + 2.2 * label - 2
    score = (1 / (1 + np.exp(-margin))).astype(np.float32)
    if ties:
        score = np.round(score, 1)
    return label, np.stack([1 - score, score], axis=1)


@pytest.mark.parametrize("ties", [False, True])
def test_figures_of_two_classes_are_those_of_scikit_learn(ties):
    """AUC, average precision, Brier score and log loss, with ties and without."""
    label, found = scored(ties=ties)
    score = found[:, 1].astype(np.float64)
    overall = measure_quality(label, found, classes=(0, 1), levels=POLICY).overall
    assert (overall.rows, overall.positives) == (4000, int(label.sum()))
    expected = {
        "auc": metrics.roc_auc_score(label, score),
        "average_precision": metrics.average_precision_score(label, score),
        "brier": metrics.brier_score_loss(label, score),
    }
    for name, value in expected.items():
        assert getattr(overall, name) == pytest.approx(value, abs=1e-12), name
    inside = np.clip(score, 1.1920929e-07, 1 - 1.1920929e-07)
    assert overall.log_loss == pytest.approx(metrics.log_loss(label, inside), rel=1e-9)


def test_decisions_at_the_thresholds_are_those_of_scikit_learn():
    """A score at a threshold is above it; shares add up to all rows."""
    label, found = scored(ties=True)
    found[:5, 1] = np.float32(0.8)
    score = found[:, 1].astype(np.float64)
    overall = measure_quality(label, found, classes=(0, 1), levels=POLICY).overall
    assert [one.name for one in overall.at_thresholds] == ["review", "decline"]
    for one in overall.at_thresholds:
        flagged = score >= one.threshold
        assert one.rows == flagged.sum()
        assert one.precision == pytest.approx(metrics.precision_score(label, flagged))
        assert one.recall == pytest.approx(metrics.recall_score(label, flagged))
    review, decline = overall.at_thresholds
    assert overall.decisions == pytest.approx(
        {
            "approve": (4000 - review.rows) / 4000,
            "review": (review.rows - decline.rows) / 4000,
            "decline": decline.rows / 4000,
        }
    )
    # 0.8 as float32 lies above 0.8: the policy compares without rounding it.
    assert decline.rows >= 5


def test_figures_of_three_classes_are_those_of_scikit_learn():
    """AUC is the mean of each class against the rest; thresholds mean nothing."""
    chance = np.random.default_rng(1)
    label = chance.integers(0, 3, 900)
    margin = chance.normal(size=(900, 3)) + 1.5 * np.eye(3)[label]
    found = np.exp(margin) / np.exp(margin).sum(axis=1, keepdims=True)
    quality = measure_quality(label, found, classes=("a", "b", "c"))
    overall = quality.overall
    macro = metrics.roc_auc_score(label, found, multi_class="ovr", average="macro")
    assert overall.auc == pytest.approx(macro, abs=1e-12)
    assert overall.log_loss == pytest.approx(metrics.log_loss(label, found), rel=1e-9)
    assert (quality.positive, quality.bins) == (None, ())
    assert overall.decisions == {}
    assert overall.brier is overall.average_precision is overall.interval is None


def test_interval_has_delongs_variance():
    """Against the definition: every pair of a positive and a negative is compared."""
    label, found = scored(500, ties=True)
    score = found[:, 1].astype(np.float64)
    ones, zeros = score[label == 1], score[label == 0]
    wins = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    variance = wins.mean(axis=1).var(ddof=1) / len(ones)
    variance += wins.mean(axis=0).var(ddof=1) / len(zeros)
    auc = wins.mean()
    low, high = auc_interval(label == 1, score)
    spread = np.log(high / (1 - high)) - np.log(low / (1 - low))
    expected = 2 * 1.959964 * np.sqrt(variance) / (auc * (1 - auc))
    assert spread == pytest.approx(expected, rel=1e-6)
    assert low < auc < high


def test_interval_covers_the_true_auc_nineteen_times_of_twenty():
    """In 400 samples of 300 rows; the true AUC of two normals is Φ(2.2/√2)."""
    from statistics import NormalDist

    truth = NormalDist().cdf(2.2 / np.sqrt(2))
    covered = 0
    for seed in range(400):
        label, found = scored(300, seed=seed)
        low, high = auc_interval(label == 1, found[:, 1].astype(np.float64))
        covered += low <= truth <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_perfect_ranking_has_no_interval():
    """A variance of zero would claim to know the AUC exactly."""
    positive = np.array([False, False, True, True])
    assert auc_interval(positive, np.array([0.1, 0.2, 0.8, 0.9])) is None


def test_segments_hold_every_row_once_and_equal_their_rows_alone():
    """A group's figures are those of its rows judged by themselves."""
    label, found = scored()
    country = np.where(np.arange(4000) % 3 == 0, "DE", "FR")
    quality = measure_quality(
        label, found, classes=(0, 1), levels=POLICY, segments={"country": country}
    )
    (segment,) = quality.segments
    assert segment.column == "country"
    assert [one.name for one in segment.groups] == ["FR", "DE"]
    assert sum(one.rows for one in segment.groups) == 4000
    for one in segment.groups:
        rows = country == one.name
        alone = measure_quality(
            label[rows], found[rows], classes=(0, 1), levels=POLICY
        ).overall
        assert one.auc == alone.auc
        assert one.at_thresholds == alone.at_thresholds
        assert one.decisions == alone.decisions


def test_a_segment_with_few_positives_says_so_instead_of_a_figure():
    """29 are too few, 30 are enough; figures without labels are reported anyway."""
    label = np.array([1] * 29 + [0] * 71 + [1] * 30 + [0] * 70)
    score = np.linspace(0, 1, 200)
    found = np.stack([1 - score, score], axis=1)
    place = ["small"] * 100 + ["large"] * 100
    (segment,) = measure_quality(
        label, found, classes=(0, 1), levels=POLICY, segments={"place": place}
    ).segments
    large, small = segment.groups
    assert (large.name, large.reason) == ("large", "")
    assert large.auc is not None
    assert small.reason == "29 positive rows, at least 30 needed"
    assert small.auc is small.interval is small.brier is small.log_loss is None
    assert small.at_thresholds == ()
    assert small.decisions["decline"] == 0


def test_numbers_become_ranges_of_as_many_rows_and_texts_are_pooled():
    """More than 12 values: five ranges of a number, the 11 largest and the rest."""
    label, found = scored(1000)
    amount = [str(one) for one in range(1, 1000)] + [""]
    shop = [f"s{one % 20}" if one < 500 else "big" for one in range(1000)]
    by_amount, by_shop = measure_quality(
        label, found, classes=(0, 1), segments={"amount": amount, "shop": shop}
    ).segments
    assert [(one.name, one.rows) for one in by_amount.groups] == [
        ("up to 200", 200),
        ("above 200 to 400", 200),
        ("above 400 to 599", 199),
        ("above 599 to 799", 200),
        ("above 799", 200),
        ("(missing)", 1),
    ]
    groups = by_shop.groups
    assert (groups[0].name, groups[0].rows) == ("big", 500)
    assert (groups[-1].name, groups[-1].rows) == ("(10 other values)", 250)
    assert len(groups) == 12
    assert sum(one.rows for one in groups) == 1000


def test_bins_are_a_calibration_table():
    """Rows, positives and mean score of each tenth of the score, 1.0 in the last."""
    score = np.array([0.0, 0.05, 0.1, 0.95, 1.0])
    found = np.stack([1 - score, score], axis=1)
    quality = measure_quality(np.array([0, 1, 0, 1, 1]), found, classes=(0, 1))
    filled = {one.low: one for one in quality.bins if one.rows}
    assert len(quality.bins) == 10
    assert {low: (one.rows, one.positives) for low, one in filled.items()} == {
        0.0: (2, 1),
        0.1: (1, 0),
        0.9: (2, 2),
    }
    assert filled[0.9].mean_score == pytest.approx(0.975)
    assert filled[0.0].mean_score == pytest.approx(0.025)


def test_labels_of_one_class_give_no_auc():
    """Ranking needs two classes; the reason stands where the figure would."""
    _, found = scored(50)
    overall = measure_quality(np.zeros(50, dtype=int), found, classes=(0, 1)).overall
    assert overall.auc is None
    assert overall.reason == "0 positive rows, at least 1 needed"


def test_rows_without_an_answer_are_counted_and_left_out():
    """NaN is no probability; the other rows are judged as if it were not there."""
    label, found = scored(300)
    found[7] = np.nan
    rest = np.arange(300) != 7
    parts = np.where(np.arange(300) < 100, "a", "b")
    quality = measure_quality(label, found, classes=(0, 1), segments={"part": parts})
    assert quality.unanswered == 1
    assert quality.overall == (
        measure_quality(label[rest], found[rest], classes=(0, 1)).overall
    )
    assert sorted(one.rows for one in quality.segments[0].groups) == [99, 200]


@pytest.mark.parametrize(
    ("label", "found", "words"),
    [
        (np.zeros(3, dtype=int), np.zeros((2, 2)), r"\[2, 2\] probabilities for 3"),
        (np.zeros(2, dtype=int), np.zeros((2, 3)), "of 2 classes"),
        (np.zeros(2, dtype=int), np.full((2, 2), np.nan), "no labelled row"),
    ],
)
def test_what_does_not_fit_is_refused(label, found, words):
    """The shapes stand in the line."""
    with pytest.raises(InputError, match=words):
        measure_quality(label, found, classes=(0, 1))


def test_a_score_at_a_threshold_is_at_or_above_it():
    """The policy decides `score >= threshold`; one half is exact in binary."""
    score = np.array([0.25, 0.5, 0.5, 0.75])
    found = np.stack([1 - score, score], axis=1)
    overall = measure_quality(np.array([0, 0, 1, 1]), found, classes=(0, 1)).overall
    assert overall.decisions == {"below 0.5": 0.25, "0.5 or above": 0.75}
    (half,) = overall.at_thresholds
    assert (half.rows, half.precision, half.recall) == (3, pytest.approx(2 / 3), 1)

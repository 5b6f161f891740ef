"""Errors by group are counted as by hand, and compared with the best-treated group."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from converters.card.card import group_sections
from converters.card.quality import LEAST, errors_by_group, measure_quality
from converters.card.quality_record import Levels
from tollgate.errors import InputError

LEVELS = Levels(names=("approve", "review", "decline"), thresholds=(0.2, 0.5))


@pytest.fixture
def rows():
    """Two large groups that are treated differently, and a small one."""
    random = np.random.default_rng(2)
    group = np.repeat(["a", "b", "c"], [600, 400, 20])
    positive = random.random(1020) < 0.3
    score = np.clip(random.beta(2, 6, 1020) + 0.2 * positive, 0, 1)
    score[group == "b"] = np.clip(score[group == "b"] + 0.1, 0, 1)
    return group, positive, score


def counted(group, positive, score):
    """Count with plain loops: approved, false declines, false approvals; by group."""
    found = {}
    for name in np.unique(group):
        own = [
            (bool(p), float(s))
            for g, p, s in zip(group, positive, score, strict=True)
            if g == name
        ]
        good = [s for p, s in own if not p]
        bad = [s for p, s in own if p]
        found[str(name)] = (
            sum(s < 0.2 for _, s in own) / len(own),
            sum(s >= 0.5 for s in good) / len(good),
            sum(s < 0.2 for s in bad) / len(bad),
        )
    return found


def test_shares_are_counted_as_by_hand(rows):
    """Approved, declined though good, approved though bad; AUC is scikit-learn's."""
    group, positive, score = rows
    found = errors_by_group(
        "g", group.tolist(), positive=positive, score=score, levels=LEVELS
    )
    wanted = counted(*rows)
    assert [one.name for one in found.groups] == ["a", "b", "c"]
    for one in found.groups[:2]:
        shares = one.approved.share, one.false_declines.share, one.false_approvals.share
        assert shares == pytest.approx(wanted[one.name])
        own = group == one.name
        assert one.auc == pytest.approx(roc_auc_score(positive[own], score[own]))
        assert one.interval[0] < one.auc < one.interval[1]
        assert (one.rows, one.positives) == (own.sum(), positive[own].sum())


def test_the_ratio_is_to_the_group_approved_most_often(rows):
    """With Katz's interval: the logarithm of a ratio is about normal."""
    group, positive, score = rows
    found = errors_by_group(
        "g", group.tolist(), positive=positive, score=score, levels=LEVELS
    )
    first, second, _ = found.groups
    assert found.reference == "a"
    assert first.ratio is None
    hits = [int((score[group == one] < 0.2).sum()) for one in ("a", "b")]
    ratio = (hits[1] / 400) / (hits[0] / 600)
    error = math.sqrt(1 / hits[1] - 1 / 400 + 1 / hits[0] - 1 / 600)
    assert second.ratio.share == pytest.approx(ratio)
    assert math.log(second.ratio.high / ratio) == pytest.approx(1.96 * error, rel=1e-4)
    assert math.log(ratio / second.ratio.low) == pytest.approx(1.96 * error, rel=1e-4)


def test_a_small_group_gives_no_share_and_is_no_reference(rows):
    """It would be approved most often, by chance."""
    group, positive, score = rows
    score[group == "c"] = 0.0
    found = errors_by_group(
        "g", group.tolist(), positive=positive, score=score, levels=LEVELS
    )
    few = found.groups[2]
    assert (few.rows, few.approved, few.ratio, few.auc) == (20, None, None, None)
    assert few.rows < LEAST
    assert found.reference == "a"


def test_the_interval_of_a_ratio_covers_it_nineteen_times_of_twenty():
    """Two groups that are approved in the shares 0.8 and 0.6, drawn 400 times."""
    random = np.random.default_rng(0)
    group = ["a"] * 300 + ["b"] * 200
    covered = 0
    for _ in range(400):
        approved = random.random(500) < np.repeat([0.8, 0.6], [300, 200])
        found = errors_by_group(
            "g",
            group,
            positive=np.zeros(500, bool),
            score=np.where(approved, 0.0, 1.0),
            levels=LEVELS,
        )
        ratio = found.groups[1].ratio
        covered += ratio.low <= 0.75 <= ratio.high
    assert 0.92 <= covered / 400 <= 0.98


def test_the_card_tells_errors_and_what_was_not_handed_in(rows):
    """A group far behind is named; so is an attribute without rows."""
    group, positive, score = rows
    quality = measure_quality(
        positive.astype(int),
        np.stack([1 - score, score], axis=1),
        classes=(0, 1),
        levels=LEVELS,
        sensitive={"sex": group.tolist()},
    )
    (section,) = group_sections(quality)
    text = " ".join(
        str(piece) for block in section.blocks for piece in getattr(block, "pieces", ())
    )
    assert section.title == "Errors by sensitive attribute"
    assert "less than four fifths" in text
    assert not quality.segments
    plain = measure_quality(
        positive.astype(int), np.stack([1 - score, score], axis=1), classes=(0, 1)
    )
    assert group_sections(plain) == ()


def test_several_classes_have_no_errors_by_group():
    """Errors by group are reported for two classes only."""
    with pytest.raises(InputError, match="errors by sex are reported for two classes"):
        measure_quality(
            np.arange(60) % 3,
            np.full((60, 3), 1 / 3),
            classes=(0, 1, 2),
            sensitive={"sex": ["f", "m"] * 30},
        )

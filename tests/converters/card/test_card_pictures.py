"""Pictures of a card: intervals as Wilson has them, and room for every bar."""

from xml.etree import ElementTree

import numpy as np
import pytest

from converters.card.card_pictures import histogram, wilson
from converters.card.quality import measure_quality


@pytest.mark.parametrize(
    ("hits", "rows", "low", "high"),
    # z² / (n + z²) = 3.841459 / 13.841459 for none of 10
    [(0, 10, 0.0, 0.2775328), (5, 10, 0.2365931, 0.7634069), (10, 10, 0.7224672, 1.0)],
)
def test_bars_of_the_picture_are_wilsons_interval(hits, rows, low, high):
    """Also where none or all of the rows are positive."""
    assert wilson(hits, rows) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "marks"),
    [(1, ["1", "10"]), (100, ["1", "10", "100"]), (20_000, ["1k", "10k", "100k"])],
)
def test_the_histogram_has_room_for_every_count(rows, marks):
    """The axis ends at a power of ten that no bar exceeds; one row is a bar too."""
    score = np.full(rows + 1, 0.05)
    score[-1] = 0.95
    label = np.zeros(rows + 1, dtype=int)
    label[-1] = 1
    found = np.stack([1 - score, score], axis=1)
    drawn = ElementTree.fromstring(
        histogram(measure_quality(label, found, classes=(0, 1)))
    )
    texts = [one.text for one in drawn.iter("text")]
    assert set(marks) <= set(texts)
    bars = {one.get("class"): [] for one in drawn.iter("rect")}
    for one in drawn.iter("rect"):
        bars[one.get("class")].append(float(one.get("height")))
    assert 0 < bars["two"][-1] <= bars["one"][0] <= 182
    assert sum(height > 0 for height in bars["one"] + bars["two"]) == 2

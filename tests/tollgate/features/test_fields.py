"""Declared fields as whole numbers: scaling, hashes, codes, what is missing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from tollgate.features.fields import codes, hash_words, lacks_fields, scaled
from tollgate.features.spec.feature_spec import load_spec
from tollgate.features.spec.spec_definition import Field
from tollgate.features.windows.entity_entries import MISSING

WEIGHT = Field(
    name="weight", type="number", decimals=2, low=-100, high=5000, vocabulary=()
)
SPEC = """\
version: 1
product: shop
entities: {customer: {key: customer_id}}
fields:
  - {name: items, type: number}
  - {name: channel, type: category, vocabulary: [web, app]}
features:
  - {name: n, entity: customer, aggregate: sum, of: items, window: 1d}
  - {name: channel, category: channel}
"""


def category(*words: str) -> Field:
    """Declare a category of these words."""
    return Field(
        name="word", type="category", decimals=0, low=0, high=0, vocabulary=words
    )


def test_numbers_are_rounded_to_their_last_decimal() -> None:
    """Halves to even, as a double has them; NaN is missing, not out of range."""
    values = np.array([1.004, 0.125, 0.375, -1.0, 50.0, math.nan, 50.01, math.inf])
    whole, wrong = scaled(values, WEIGHT)
    assert whole.tolist() == [100, 12, 38, -100, 5000, MISSING, 0, 0]
    assert wrong.tolist() == [False] * 6 + [True] * 2


def test_words_are_hashed_and_looked_up() -> None:
    """Places from 0; -1 without a word, -2 for one the vocabulary has not."""
    words = ["web", "é", "app"]
    hashes = hash_words(["é".encode(), b"", b"web", b"fax", b"app", b"web"])
    assert hashes[1] == MISSING
    assert hashes[2] == hashes[5] != hashes[0]
    assert codes(hashes, category(*words)).tolist() == [1, -1, 0, -2, 2, 0]


def test_a_batch_and_a_history_have_the_same_codes() -> None:
    """What looks few words up quickly agrees with what looks many up."""
    words = [f"w{at}".encode() for at in range(40)]
    hashes = hash_words([*words, b"", b"fax"] * 3)
    field = category(*(f"w{at}" for at in np.random.default_rng(1).permutation(35)))
    many = codes(hashes, field)
    few = [codes(hashes[at : at + 5], field) for at in range(0, len(hashes), 5)]
    assert np.concatenate(few).tolist() == many.tolist()
    assert set(many.tolist()) == set(range(-2, 35))


def test_longer_vocabulary_keeps_the_codes_it_had() -> None:
    """Words added at the end change no code of the others."""
    hashes = hash_words([b"a", b"b", b"c"])
    assert codes(hashes, category("b", "a")).tolist() == [1, 0, -2]
    assert codes(hashes, category("b", "a", "c")).tolist() == [1, 0, 2]


def test_rows_without_a_field_are_marked(tmp_path: Path) -> None:
    """Left out by the row, by all rows, or not in the vocabulary."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    spec = load_spec(path)
    fields = {
        "items": np.array([1, MISSING, 2, 0]),
        "channel": hash_words([b"web", b"web", b"fax", b"app"]),
    }
    assert lacks_fields(spec, fields, 4).tolist() == [False, True, True, False]
    assert lacks_fields(spec, {"items": fields["items"]}, 4).all()


def test_a_row_that_lacks_a_field_of_the_policy_is_whole(tmp_path: Path) -> None:
    """The bit tells of the vector, which has nothing to do with it."""
    path = tmp_path / "features.yaml"
    consent = "  - {name: consent, type: category, use: policy}\nfeatures:\n"
    path.write_text(SPEC.replace("features:\n", consent))
    spec = load_spec(path)
    fields = {
        "items": np.array([1, MISSING]),
        "channel": hash_words([b"web", b"web"]),
        "consent": hash_words([b"", b"yes"]),
    }
    assert lacks_fields(spec, fields, 2).tolist() == [False, True]

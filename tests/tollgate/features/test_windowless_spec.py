"""A features.yaml without entities, without money, with numbers that may be missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.errors import PolicyError, SpecError
from tollgate.features.offline import build
from tollgate.features.spec.description import compare, needed_entities
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import history_of
from tollgate.policy import load_policy
from tollgate.schema import MIN_EVENT_TIME_US

PLAIN = """\
version: 1
product: loans
amount: false
fields:
  - {name: income, type: number, decimals: 2}
  - {name: debt, type: number}
  - {name: housing, type: category, vocabulary: [own, rent]}
features:
  - {name: income, field: income, default: .nan}
  - {name: debt, field: debt, default: .nan, range: [0, 500]}
  - {name: housing, category: housing}
  - {name: burden, ratio: [debt, income], default: .nan}
  - {name: left, difference: [income, debt], default: -1}
"""
WINDOWS = """\
version: 1
product: posts
amount: false
entities:
  author: {key: author_id}
fields:
  - {name: words, type: number}
features:
  - {name: words, field: words}
  - {name: n_1h, entity: author, aggregate: count, window: 1h}
  - {name: words_1h, entity: author, aggregate: sum, window: 1h, of: words}
"""
POLICY = """\
version: 1
product: loans
labels: [repaid, defaulted]
score: defaulted
thresholds: {review: 0.4, decline: 0.7}
fallback: {model_output: review}
rules:
  - {name: large, owner: desk, when: {WHAT: {ge: 9}}, at_least: review, code: LARGE}
reasons: {SCORE_REVIEW: a, SCORE_DECLINE: b, MODEL_UNAVAILABLE: c, LARGE: d}
"""


def loaded(folder: Path, text: str, *changes: tuple[str, str]) -> FeatureSpec:
    """Write a file with some of its texts replaced, and load it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "features.yaml"
    path.write_text(text)
    return load_spec(path)


def test_the_fraud_product_keeps_its_hashes(spec: FeatureSpec) -> None:
    """
    Its stored values and its models stay good.

    The figures were taken before a product could be without entities or money.
    """
    assert f"{spec.spec_hash:016x}" == "c36f8242c6fa0068"
    assert f"{spec.state_hash:016x}" == "2cf96ef3ba675808"
    assert spec.amount


def test_entities_and_amount_may_be_left_out(tmp_path: Path) -> None:
    """Id, time and declared fields are all there is; `entities: {}` says the same."""
    spec = loaded(tmp_path, PLAIN)
    assert spec.entities == ()
    assert spec.columns == ("transaction_id", "event_time")
    assert spec.id_names == ("transaction_id",)
    assert spec.field_names == ("income", "debt", "housing")
    assert not any(needed_entities(one, spec) for one in spec.features)
    again = loaded(tmp_path, PLAIN, ("fields:", "entities: {}\nfields:"))
    assert (again.spec_hash, again.state_hash) == (spec.spec_hash, spec.state_hash)


def test_money_and_entities_are_two_things(tmp_path: Path) -> None:
    """Either may be there without the other; money alone changes no vector."""
    with_money = loaded(tmp_path, PLAIN, ("amount: false", "amount: true"))
    assert with_money.columns == ("transaction_id", "amount", "event_time")
    assert compare(loaded(tmp_path, PLAIN), with_money).same_vector
    posts = loaded(tmp_path, WINDOWS)
    assert posts.columns == ("transaction_id", "author_id", "event_time")


def test_another_default_is_another_vector(tmp_path: Path) -> None:
    """NaN is told from 0: a model that imputes saw other numbers."""
    one = loaded(tmp_path, PLAIN)
    other = loaded(tmp_path, PLAIN, ("income, default: .nan", "income, default: 0"))
    assert one.spec_hash != other.spec_hash
    (change,) = compare(one, other).changes
    assert (change.feature, change.details) == ("income", ("default: nan → 0",))


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (PLAIN, "field: income", "field: amount", "features.income.field: which the "),
        (
            WINDOWS,
            ", of: words",
            "",
            "features.words_1h: is of the amount, which the product has not "
            "(amount: false); say of what: of",
        ),
        (WINDOWS, "of: words", "of: amount", "features.words_1h.of: which the product"),
        (
            WINDOWS,
            "sum, window: 1h, of: words",
            "distinct, window: 1h, of: amount",
            "features.words_1h.of: which the product has not",
        ),
        (
            PLAIN,
            "field: debt, default: .nan, range: [0, 500]",
            "entity: customer, aggregate: count, window: 1d",
            "features.debt.entity: 'customer' is none of the entities: there are none",
        ),
        (
            PLAIN,
            "fields:",
            "tables: {risk: {entity: customer}}\nfields:",
            "tables: there are no entities that it could be of",
        ),
        (
            PLAIN,
            "fields:",
            "feeds: {labels: {max_age: 1d}}\nfields:",
            "feeds: there are no entities that it could be of",
        ),
        (
            PLAIN,
            "fields:",
            "aliases: {amount: [A]}\nfields:",
            "aliases: 'amount' is no",
        ),
        (PLAIN, "name: debt, type", "name: amount, type", "fields.amount: 'amount' is"),
        (PLAIN, "amount: false", "amount: none", "Expected `bool`"),
        (
            PLAIN,
            "income, default: .nan",
            "income, default: .inf",
            "inf is not a finite",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, text: str, old: str, new: str, words: str
) -> None:
    """One line that names file and key."""
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, text, (old, new))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'features.yaml'}: ")
    assert words in message
    assert "\n" not in message


def test_a_policy_may_not_speak_of_money_that_is_not_there(tmp_path: Path) -> None:
    """`amount` is a name where there is an amount, and only there."""
    path = tmp_path / "policy.yaml"
    names = ["income"]
    path.write_text(POLICY.replace("WHAT", "income"))
    load_policy(path, feature_names=names, amount=False)
    path.write_text(POLICY.replace("WHAT", "amount"))
    load_policy(path, feature_names=names)
    with pytest.raises(PolicyError, match="'amount' is no field, feature"):
        load_policy(path, feature_names=names, amount=False)


def test_the_vector_by_hand(tmp_path: Path) -> None:
    """Missing numbers are NaN, also in a ratio; a default that is none stands."""
    spec = loaded(tmp_path, PLAIN)
    rows = pl.DataFrame(
        {
            "income": [100.126, None, 50.0, 0.0],
            "debt": [900.4, 20.0, None, 5.0],
            "housing": ["rent", "own", None, "boat"],
        }
    )
    history = history_of(rows, spec=spec, source="rows")
    nan = np.nan
    expected = [
        # 100.126 is stored with two decimals, 900.4 as a whole number, truncated.
        [100.13, 500.0, 1.0, 500.0 / 100.13, 100.13 - 500.0],
        [nan, 20.0, 0.0, nan, -1.0],
        [50.0, nan, -1.0, nan, -1.0],
        [0.0, 5.0, -2.0, nan, -5.0],
    ]
    np.testing.assert_array_equal(build(spec, history), expected)


def test_a_file_needs_neither_ids_nor_times(tmp_path: Path) -> None:
    """Rows are numbered and have one time; those that a file has stay."""
    spec = loaded(tmp_path, PLAIN)
    rows = pl.DataFrame({"income": [1.0, 2.0], "debt": [1, 2], "housing": ["own"] * 2})
    bare = history_of(rows, spec=spec, source="rows")
    assert bare.transaction_id == [b"1", b"2"]
    assert bare.event_time_us.tolist() == [MIN_EVENT_TIME_US] * 2
    assert bare.cents.tolist() == [0, 0]
    named = rows.with_columns(
        transaction_id=pl.Series(["a", "b"]), event_time=pl.Series([10**15, 10**15 + 1])
    )
    kept = history_of(named, spec=spec, source="rows")
    assert kept.transaction_id == [b"a", b"b"]
    assert kept.event_time_us.tolist() == [10**15, 10**15 + 1]

"""Simulated applications look like such tables do, and the product can read them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.history import history_of
from tollgate.policy.policy_document import read_document
from tollgate.simulate.credit import SENSITIVE, simulate_credit

REPOSITORY = Path(__file__).parents[3] / "model_repository"
SPEC = load_spec(REPOSITORY / "credit_features/1/features.yaml")
POLICY = read_document(REPOSITORY / "credit_decision/1/policy.yaml").raw


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    """Draw 5,000 applications."""
    return simulate_credit(rows=5_000, seed=1)


def test_the_same_seed_gives_the_same_table(frame: pl.DataFrame) -> None:
    """And another seed another."""
    assert simulate_credit(rows=5_000, seed=1).equals(frame)
    assert not simulate_credit(rows=5_000, seed=2).equals(frame)


def test_it_has_gaps_words_and_both_outcomes(frame: pl.DataFrame) -> None:
    """Every word of every vocabulary comes, and nothing else; about 11 % default."""
    assert 0.08 < frame["label"].mean() < 0.15
    for field in SPEC.fields:
        column = frame[field.name]
        if field.type == "category":
            assert set(column.drop_nulls().unique()) == set(field.vocabulary)
    for name in ("income", "utilization", "credit_years", "savings", "home"):
        assert 0 < frame[name].null_count() < 0.4 * len(frame)


def test_the_product_reads_every_row(frame: pl.DataFrame) -> None:
    """No value is out of its field's range."""
    history = history_of(frame, spec=SPEC, source="simulated")
    assert len(history) == len(frame)
    assert history.label.tolist() == frame["label"].to_list()


def test_what_is_sensitive_is_a_column_and_no_input(frame: pl.DataFrame) -> None:
    """The same attributes as the policy names; features.yaml knows none of them."""
    assert tuple(POLICY.sensitive) == SENSITIVE
    assert set(SENSITIVE) <= set(frame.columns)
    inputs = {*SPEC.feature_names, *SPEC.field_names, *SPEC.columns}
    assert not inputs & set(SENSITIVE)
    unknown = set(frame.columns) - inputs - set(SENSITIVE) - {"label"}
    assert not unknown


@pytest.mark.parametrize(("rows", "seed"), [(0, 0), (1_000_001, 0), (10, -1)])
def test_what_cannot_be_drawn_is_refused(rows: int, seed: int) -> None:
    """In one line that names it."""
    with pytest.raises(InputError, match="seed" if seed else "rows"):
        simulate_credit(rows=rows, seed=seed)

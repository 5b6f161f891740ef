"""The file of a table: read to the number, or refused by cell."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import find_table, read_table_rows

SPEC = """
version: 1
product: shop
aliases: {customer_id: [CUSTOMER]}
entities:
  customer: {key: customer_id}
tables:
  nightly: {entity: customer, max_age: 2d}
  always: {entity: customer}
features:
  - {name: n_1d, entity: customer, aggregate: count, window: 1d}
  - {name: risk, table: nightly, column: risk}
  - {name: limit, table: nightly, column: limit}
  - {name: fixed, table: always, column: risk}
"""


@pytest.fixture
def shop(tmp_path: Path) -> FeatureSpec:
    """A product with two tables."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return load_spec(path)


def file_of(folder: Path, text: str) -> Path:
    """Write a table as CSV."""
    path = folder / "table.csv"
    path.write_text(text)
    return path


def test_columns_come_in_the_tables_order(shop: FeatureSpec, tmp_path: Path) -> None:
    """By alias, with blanks as NaN, and times as ISO texts."""
    text = (
        "CUSTOMER,risk,limit,valid_from\na,0.5,,2024-01-01T00:00:00\nb,NaN,7,2024-01-02"
    )
    path = file_of(tmp_path, text + "T00:00:00\n")
    rows = read_table_rows(path, spec=shop, table=find_table(shop, "nightly"))
    assert rows.ids == [b"a", b"b"]
    np.testing.assert_array_equal(rows.values, [[np.nan, 0.5], [7.0, np.nan]])
    assert np.diff(rows.valid_us).tolist() == [86_400_000_000]


def test_without_valid_from_the_file_tells(shop: FeatureSpec, tmp_path: Path) -> None:
    """Its own time where numbers grow old; always where they do not."""
    path = file_of(tmp_path, "customer_id,risk,limit\na,0.5,1\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    nightly, always = (find_table(shop, name) for name in ("nightly", "always"))
    told = read_table_rows(path, spec=shop, table=nightly).valid_us
    assert told.tolist() == [1_700_000_000_000_000]
    assert read_table_rows(path, spec=shop, table=always).valid_us.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("customer_id,risk\na,1", "limit: column missing"),
        ("risk,limit\n1,1", "customer_id: column missing"),
        ("customer_id,risk,limit\na,much,1", "risk: row 0: 'much' is not a number"),
        ("customer_id,risk,limit\na,1e39,1", "risk: row 0: '1e39' is not within"),
        ("customer_id,risk,limit\na,inf,1", "risk: row 0: 'inf' is not within"),
        ("customer_id,risk,limit\na,1,1\na,2,2", "row 1: 'a' appears twice"),
        ("customer_id,risk,limit\n,1,1", "customer_id: row 0: is null"),
        (
            "customer_id,risk,limit,valid_from\na,1,1,soon",
            "valid_from: row 0: 'soon' is not a time",
        ),
    ],
)
def test_a_cell_that_is_wrong_is_named(
    shop: FeatureSpec, tmp_path: Path, text: str, message: str
) -> None:
    """File, column, row and value."""
    path = file_of(tmp_path, text + "\n")
    with pytest.raises(InputError, match=message) as caught:
        read_table_rows(path, spec=shop, table=find_table(shop, "nightly"))
    assert str(path) in str(caught.value)


def test_a_name_that_is_no_table_is_refused(shop: FeatureSpec) -> None:
    """With those that are."""
    with pytest.raises(InputError, match=r"weekly: .*there are: nightly, always"):
        find_table(shop, "weekly")

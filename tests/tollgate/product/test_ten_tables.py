"""Products of tables of different kinds are as good as plain scripts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.tollgate import ten_tables
from tollgate.product.choices import ProductChoices
from tollgate.product.files import build_features
from tollgate.product.plan import make_plan
from tollgate.product.rows import rows_of
from tollgate.validation import check_fields


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rare", "tiny"])
def test_a_product_is_within_a_hundredth_of_the_better_script(
    name: str, tmp_path: Path
) -> None:
    """The product is really served and evaluated; `ten_tables.py` runs all ten."""
    table = ten_tables.made(name)
    auc, said = ten_tables.product_auc(table, tmp_path)
    plain = ten_tables.plain_aucs(table, ten_tables.held_out_rows(table))
    assert auc > max(plain.values()) - ten_tables.MARGIN
    assert not [one for one in said if one.startswith("WARNING")]
    assert [one for one in said if one.startswith("compared: AUC of simple models")]


@pytest.mark.parametrize("name", sorted(ten_tables.TABLES))
def test_every_table_gives_usable_features(name: str, tmp_path: Path) -> None:
    """Each informative column is used, and no row is lost without a note."""
    table = ten_tables.made(name)
    pl.DataFrame(table.columns).write_parquet(tmp_path / "table.parquet")
    plan = make_plan(
        ProductChoices(
            product="shop",
            table=tmp_path / "table.parquet",
            label=ten_tables.LABEL,
            **table.options,
        )
    )
    roles = {ten_tables.LABEL, *table.options.get("entities", ())}
    roles |= {table.options.get("time"), table.options.get("amount")}
    taken = {one.column.source for one in plan.fields}
    assert taken == set(table.columns) - roles


def test_rows_with_words_that_serving_refuses_are_not_used_for_training(
    tmp_path: Path,
) -> None:
    """The check of a request and the reading of the table agree for each row."""
    table = ten_tables.made("texts")
    pl.DataFrame(table.columns).write_parquet(tmp_path / "table.parquet")
    plan = make_plan(
        ProductChoices(
            product="shop", table=tmp_path / "table.parquet", label=ten_tables.LABEL
        )
    )
    missing = {one.name: 0.0 for one in plan.fields}
    spec, rows, *_ = build_features(plan, tmp_path, fields=plan.fields, missing=missing)
    sent = {
        one.name: np.array(
            [str(word).encode() for word in table.columns[one.column.source]], object
        )
        for one in plan.fields
        if one.column.kind == "category"
    }
    _, errors = check_fields(spec.fields, sent)
    assert len(errors) > 20
    assert len(rows.frame) == len(table.columns[ten_tables.LABEL]) - len(errors)
    (note,) = [
        note for one in plan.fields for note in one.column.notes if "128 bytes" in note
    ]
    assert note.startswith(f"{len(errors)} rows have words over 128 bytes")
    assert rows_of(plan.frame, spec=spec, positive="1", source="table").frame.equals(
        rows.frame
    )

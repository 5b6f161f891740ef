"""Names of columns are valid for inputs, features and policies."""

from __future__ import annotations

import pytest

from tollgate.features.spec.spec_document import _NAME  # what features.yaml allows
from tollgate.product.column_names import Namer, entity_name


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("age", "age"),
        ("PAY_0", "PAY_0"),
        ("debt ratio", "debt_ratio"),
        ("default.payment.next.month", "default_payment_next_month"),
        ("2nd", "c_2nd"),
        ("", "c_"),
        ("größe", "gr_e"),
        ("amount", "amount_field"),
        ("score", "score_field"),
        ("COLD_START", "COLD_START_field"),
        ("features", "features_field"),
    ],
)
def test_valid_name_does_not_change(column: str, name: str) -> None:
    """An invalid name changes as little as possible; a reserved name gets a suffix."""
    assert Namer().name(column) == name
    assert _NAME.fullmatch(name)


def test_names_are_unique() -> None:
    """Columns that would get equal names are numbered, also with long names."""
    namer = Namer()
    assert [namer.name("a b"), namer.name("a.b"), namer.name("a_b")] == [
        "a_b",
        "a_b_2",
        "a_b_3",
    ]
    long = [namer.name("x" * 100 + str(at)) for at in range(3)]
    assert len(set(long)) == 3
    assert all(_NAME.fullmatch(one) for one in long)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("customer_id", "customer"),
        ("CUSTOMER_ID", "customer"),
        ("card", "card"),
        ("id", "id_entity"),
        ("transaction_id_field", "transaction_id_field"),
    ],
)
def test_entity_is_named_after_its_key(key: str, name: str) -> None:
    """Without the suffix `_id`."""
    assert entity_name(key) == name


def test_valid_names_take_precedence() -> None:
    """Also over columns that come first in the table: files use these names already."""
    names = Namer().names(["x y", "x.y", "x_y", "z"])
    assert names == {"x_y": "x_y", "z": "z", "x y": "x_y_2", "x.y": "x_y_3"}

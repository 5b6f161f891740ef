"""Columns get names that inputs, features and policies can have."""

from __future__ import annotations

import pytest

from tollgate.features.wellformed import _NAME  # what features.yaml allows
from tollgate.product.names import Namer, entity_name


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
def test_a_name_stays_if_it_can(column: str, name: str) -> None:
    """Otherwise it is as near as can be; what has a meaning of its own gives way."""
    assert Namer().name(column) == name
    assert _NAME.fullmatch(name)


def test_no_name_is_given_twice() -> None:
    """Columns that would be called alike are numbered, long ones too."""
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
def test_an_entity_is_called_by_its_key(key: str, name: str) -> None:
    """Without the `_id` behind it."""
    assert entity_name(key) == name


def test_who_can_keep_a_name_keeps_it() -> None:
    """Whichever comes first in the table: files call these columns so already."""
    names = Namer().names(["x y", "x.y", "x_y", "z"])
    assert names == {"x_y": "x_y", "z": "z", "x y": "x_y_2", "x.y": "x_y_3"}

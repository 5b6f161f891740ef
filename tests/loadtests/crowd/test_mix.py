"""A mix of products is read from a line, or refused in one."""

from __future__ import annotations

import pytest

from loadtests.crowd.crowd import Part, read_mix
from tollgate.errors import InputError

SERVED = ("credit", "fraud")


def test_weights_become_shares() -> None:
    """Rows and weights may be left out; 0 rows are the scenario's."""
    assert read_mix("fraud=8, fraud:16=1,credit", products=SERVED) == (
        Part("fraud", 0, 0.8),
        Part("fraud", 16, 0.1),
        Part("credit", 0, 0.1),
    )


def test_without_words_it_is_fraud_or_else_the_first() -> None:
    """Where only others are served, one of them."""
    assert read_mix("", products=SERVED) == (Part("fraud", 0, 1.0),)
    assert read_mix("", products=("credit", "loans")) == (Part("credit", 0, 1.0),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loans", "'loans' is none of those served: credit, fraud"),
        ("fraud:33", "'33' rows are not 1 to 32"),
        ("fraud:", "'' rows are not 1 to 32"),
        ("fraud=0", "'0' is no weight above 0"),
        ("fraud=nan", "'nan' is no weight above 0"),
        ("fraud=much", "'much' is no weight above 0"),
        ("fraud,", "'' is none of those served"),
    ],
)
def test_invalid_mix_is_refused_in_one_line(text: str, words: str) -> None:
    """With what is wrong in it."""
    with pytest.raises(InputError, match=words):
        read_mix(text, products=SERVED)

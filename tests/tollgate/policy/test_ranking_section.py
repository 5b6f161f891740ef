"""The section `ranking` of a policy is read, and refused with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import PolicyError
from tollgate.policy import Policy, load_policy
from tollgate.schema import DeclaredField

EXAMPLE = Path(__file__).parents[2] / "support/policy/shop_policy.yaml"
FIELDS = (
    DeclaredField("slot", "category", vocabulary=("home", "product", "cart")),
    DeclaredField("device", "category", vocabulary=("web", "app")),
)


def load(folder: Path, *edits: tuple[str, str]) -> Policy:
    """Load the example with some texts replaced."""
    text = EXAMPLE.read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "policy.yaml"
    path.write_text(text)
    return load_policy(path, feature_names=["events"], fields=FIELDS)


def test_the_example_is_read_as_written(tmp_path: Path) -> None:
    ranking = load(tmp_path).ranking
    assert ranking is not None
    assert (ranking.items, ranking.diversity, ranking.stock) == (
        10,
        0.2,
        "out_of_stock",
    )
    assert (ranking.bought_s, ranking.seen_s) == (30 * 86_400, 600)
    assert ranking.exploration is not None
    assert (ranking.exploration.share, ranking.exploration.first) == (0.1, 2)
    effects = [(one.name, one.action, one.factor, one.number) for one in ranking.rules]
    assert effects == [
        ("spring", "boost", 1.5, 0),
        ("own_brand", "boost", 1.0, 0),
        ("heavy", "bury", 2.0, 0),
        ("voucher", "pin", 1.0, 2),
        ("mixed", "cap", 1.0, 4),
        ("few_books", "cap", 1.0, 1),
    ]


def test_a_list_that_comes_again_is_ranked_again(tmp_path: Path) -> None:
    assert load(tmp_path).idempotency_s == 0
    with pytest.raises(PolicyError, match=r"idempotency\.window: a list is not stored"):
        load(tmp_path, ("rules: []\n", "rules: []\nidempotency: {window: 5m}\n"))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("items: 10", "items: 0", r"ranking\.items: 0 is not within 1 … 50"),
        ("items: 10", "items: 51", r"ranking\.items: 51 is not within"),
        ("weight: 0.2", "weight: 1.5", r"diversity\.weight: 1\.5 is not within"),
        ("share: 0.1", "share: 0", r"exploration\.share: 0"),
        ("bought: 30d", "bought: soon", r"ranking\.bought: 'soon' is no time"),
        ("pin: 2", "pin: 51", r"pin: 51 is not within"),
        ("items: [i9]", "items: [i9, i8]", "pins exactly one item"),
        ("factor: 2}", "factor: 0.5}", "factor: 0.5 is not above 1"),
        ("cap: 4", "cap: 4, items: [i1]", "a cap is of categories"),
        ("items: [i7]", "items: ['i|7']", "is no item id"),
        ("slot: home", "slot: cellar", "cellar"),
        ("name: heavy", "name: spring", "appears twice"),
        ("until: 2026-06-01", "until: 2026-02-01", "is not after"),
        ("stock: out_of_stock", "stock: 'out of stock'", "is no name"),
        ("seen: 10m", "sene: 10m", "sene"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    with pytest.raises(PolicyError, match=problem):
        load(tmp_path, (old, new))

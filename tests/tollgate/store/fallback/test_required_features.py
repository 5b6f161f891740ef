"""What is essential, over features of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.schema import Degraded
from tollgate.store.fallback.local_values import apply_purchases
from tollgate.store.fallback.required_features import Essentials
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import Packer, Purchases, purchase_entries

BIT = int(Degraded.ESSENTIAL_MISSING)
SPEC = """
version: 1
product: toy
fields:
  - {name: score, type: number, decimals: 2, range: [0, 100]}
  - {name: channel, type: category, vocabulary: [web, shop]}
entities:
  card: {key: card_id}
  shop: {key: shop_id}
features:
  - {name: amount, field: amount}
  - {name: score, field: score%s}
  - {name: channel, category: channel}
  - {name: card_1d, entity: card, aggregate: count, window: 1d%s}
  - {name: card_7d, entity: card, aggregate: mean, of: score, window: 7d}
  - {name: shop_1d, entity: shop, aggregate: share, window: 1d}
  - {name: both, ratio: [card_1d, shop_1d]%s}
feeds:
  labels: {max_age: 1h}
"""


@pytest.fixture
def spec_of(tmp_path: Path) -> Callable[..., FeatureSpec]:
    """Write the spec above, with words added to score, card_1d and both."""

    def write(*, score: str = "", card: str = "", both: str = "") -> FeatureSpec:
        path = tmp_path / "features.yaml"
        path.write_text(SPEC % (score, card, both))
        return load_spec(path)

    return write


def test_a_derived_feature_needs_what_its_inputs_need(
    spec_of: Callable[..., FeatureSpec],
) -> None:
    """By hand: which column falls with which entity."""
    needs = Essentials(spec_of()).needs.tolist()
    assert needs == [[0, 0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("words", "card", "shop"),
    [
        ({}, 0, 0),
        ({"card": ", essential: true"}, BIT, 0),
        ({"both": ", essential: true"}, BIT, BIT),
    ],
)
def test_an_entity_that_nothing_is_known_of(
    spec_of: Callable[..., FeatureSpec], words: dict[str, str], card: int, shop: int
) -> None:
    """It matters to the essential features that need it, and to no other."""
    essentials = Essentials(spec_of(**words))
    missing_entities = np.array([[True, False, False], [False, True, False]])
    assert essentials.missing_entities(missing_entities).tolist() == [card, shop, 0]


def test_the_age_limit_is_the_features_own(
    spec_of: Callable[..., FeatureSpec],
) -> None:
    """Ten minutes of a card's last known value; any age of a shop's."""
    essentials = Essentials(spec_of(card=", essential: true, max_age: 10m"))
    age_us = np.array([[600_000_000, 600_000_001, 0], [0, 0, 10**15]])
    assert essentials.too_old(age_us).tolist() == [0, BIT, 0]


def test_a_feed_matters_to_what_is_made_of_it(
    spec_of: Callable[..., FeatureSpec],
) -> None:
    """A count is made of purchases; a ratio with a share in it of labels, too."""
    count = Essentials(spec_of(card=", essential: true"))
    ratio = Essentials(spec_of(both=", essential: true"))
    assert [count.stale_feeds({"labels"}), ratio.stale_feeds({"labels"})] == [0, BIT]
    assert [count.stale_feeds({"purchases"}), ratio.stale_feeds(set())] == [BIT, 0]


def test_an_essential_field_must_be_sent(spec_of: Callable[..., FeatureSpec]) -> None:
    """In a row that lacks it, and in all rows when no row has it."""
    essentials = Essentials(spec_of(score=", essential: true"))
    sent = {"score": np.array([500, MISSING, 0])}
    assert essentials.missing_fields(sent, 3).tolist() == [0, BIT, 0]
    assert essentials.missing_fields({}, 2).tolist() == [BIT, BIT]
    assert Essentials(spec_of()).missing_fields({}, 2).tolist() == [0, 0]


def test_values_with_columns_are_applied_as_the_store_does(
    spec_of: Callable[..., FeatureSpec],
    store_url: str,
    open_store: Callable[..., RedisStore],
) -> None:
    """Entries of two widths in one call: byte for byte what apply.lua answers."""
    spec = spec_of()
    widths = [len(entity.columns) for entity in spec.entities]
    assert widths == [1, 0]
    store, packer = open_store(store_url), Packer(spec)
    generator = np.random.default_rng(3)
    known: dict[bytes, bytes] = {}
    for lap in range(4):
        count = 12
        batch = Purchases(
            transaction_id=[b"t%d" % (lap * 9 + row) for row in range(count)],
            entity_id=[
                [b"c%d" % one for one in generator.integers(0, 3, count)],
                [b"s%d" % one for one in generator.integers(0, 3, count)],
            ],
            event_time_us=1_700_000_000_000_000 + generator.integers(0, 10**9, count),
            cents=generator.integers(0, 10_000, count),
            fields={"score": generator.integers(0, 10_000, count)},
        )
        call = packer.pack(
            purchase_entries(batch), batch.entity_id, columns=packer.columns(batch)
        )
        here = apply_purchases([known.get(key, b"") for key in call.keys], call)
        ((values, _),) = store.apply([(call, Mode.WRITE)])
        assert here[0] == values
        known.update(zip(call.keys, values, strict=True))

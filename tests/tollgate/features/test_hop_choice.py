"""`hop: auto` is chosen by the busiest id of a history."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.features.hop_choice import resolve_hops
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import load_draft, load_spec
from tollgate.features.windows.capacity import highest_count
from tollgate.history import History, history_of

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
SPEC = """\
version: 1
product: shop
lateness: 1d
entities:
  shop: {{key: shop_id, hop: {shop}{shop_keys}}}
  person: {{key: person_id, hop: {person}}}
features:
  - {{name: n, entity: shop, aggregate: count, window: 7d}}
  - {{name: frauds, entity: shop, aggregate: share, window: 7d}}
  - {{name: paid, entity: person, aggregate: sum, window: 1d}}
"""


def written(
    folder: Path, shop: str = "auto", person: str = "auto", shop_keys: str = ""
) -> Path:
    """A file with two hops and more keys of the shop."""
    path = folder / "features.yaml"
    path.write_text(SPEC.format(shop=shop, person=person, shop_keys=shop_keys))
    return path


def history(path: Path, *, shops: list[str], every_s: int = 60) -> History:
    """Purchases at one time distance, not in the order of time; people buy once."""
    count = len(shops)
    rows = np.random.default_rng(0).permutation(count)
    frame = pl.DataFrame(
        {
            "transaction_id": [f"t{row}" for row in range(count)],
            "shop_id": shops,
            "person_id": [f"p{row}" for row in range(count)],
            "amount": [0.01] * count,
            "event_time": [
                START_US + SECOND_US * every_s * row for row in range(count)
            ],
        }
    ).with_columns(pl.col("event_time").cast(pl.Datetime("us")))
    return history_of(frame[rows.tolist()], spec=load_draft(path), source="h.csv")


def test_an_id_within_the_cap_gets_exact_windows(tmp_path: Path) -> None:
    """1,024 purchases of a shop within its 7 days are all stored."""
    path = written(tmp_path)
    spec, choices = resolve_hops(path, history(path, shops=["s"] * 1_024))
    assert [one.text for one in choices] == [
        "shop: hop: 0, because no id has more than 1,024 events within 7d; the store "
        "holds 1,024 of each",
        "person: hop: 0, because no id has more than 1 events within 1d; the store "
        "holds 1,024 of each",
    ]
    assert spec == load_spec(written(tmp_path, shop="0", person="0"))


def test_one_more_gets_the_smallest_hop_that_fits(tmp_path: Path) -> None:
    """
    Only the entity with the hot entity has tiles.

    By hand, 7d without a delay and hops up to 6h: some 33 tiles of 6h, 12 bytes each.
    """
    path = written(tmp_path)
    purchases = history(path, shops=["s"] * 1_025)
    spec, choices = resolve_hops(path, purchases)
    assert [(one.entity, one.hop) for one in choices] == [
        ("shop", "1s"),
        ("person", "0"),
    ]
    assert choices[0].reason == (
        "an id has up to 1,025 events within 7d; without a hop the store holds 1,024 "
        "of each"
    )
    assert [one.tiles is not None for one in spec.entities] == [True, False]
    expected = load_spec(written(tmp_path, shop="1s", person="0"))
    assert (spec.spec_hash, spec.state_hash) == (
        expected.spec_hash,
        expected.state_hash,
    )
    assert build(spec, purchases).shape == (1_025, 3)
    with pytest.raises(InputError, match="set hop: 1s for shop, shorten the windows"):
        build(load_spec(written(tmp_path, shop="0", person="0")), purchases)


def test_events_that_left_the_window_do_not_count(tmp_path: Path) -> None:
    """An hour apart, a shop has 168 purchases within 7 days, whatever it has in all."""
    path = written(tmp_path)
    _, choices = resolve_hops(path, history(path, shops=["s"] * 3_000, every_s=3_600))
    assert choices[0].hop == "0"
    assert "no id has more than 168 events" in choices[0].reason


def test_a_written_hop_is_not_changed(tmp_path: Path) -> None:
    """Without `auto` there is no choice, even if a smaller hop would do."""
    path = written(tmp_path, shop="6h", person="0")
    spec, choices = resolve_hops(path, history(path, shops=["s"] * 5_000))
    assert choices == ()
    assert spec == load_spec(path)


def test_a_busy_id_without_a_possible_hop_is_refused(tmp_path: Path) -> None:
    """A cap of 1,000 leaves tiles no room; `distinct` needs every purchase."""
    path = written(tmp_path, shop_keys=", cap: 1000")
    busy = history(path, shops=["s"] * 1_001)
    with pytest.raises(InputError, match="set hop: 1s without a cap for shop, shorten"):
        resolve_hops(path, busy)
    path.write_text(
        path.read_text().replace(", cap: 1000", "")
        + "  - {name: people, entity: shop, aggregate: distinct, of: person_id, "
        "window: 1d}\n"
    )
    assert resolve_hops(path, busy)[1][0].hop == "0"
    with pytest.raises(InputError) as caught:
        resolve_hops(path, history(path, shops=["s"] * 1_025))
    assert (
        "served vectors would differ and a hop cannot help (people (distinct) needs "
        "every event): shorten the windows of shop"
    ) in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_the_highest_count_is_that_of_a_plain_loop(tmp_path: Path, seed: int) -> None:
    """Of all ids and all moments, ties and bursts included."""
    source = np.random.default_rng(seed)
    (entity, _) = load_draft(written(tmp_path, shop_keys=", delay: 2d")).entities
    reach_us = 9 * 86_400 * SECOND_US
    time_us = np.sort(source.integers(0, 40, 300)) * 86_400 * SECOND_US
    code = np.sort(source.geometric(0.3, 300))
    code = np.unique(code, return_inverse=True)[1].astype(np.int64)
    order = np.lexsort((time_us, code))
    code, time_us = code[order], time_us[order]
    wanted = max(
        int(((code == one) & (time_us > at - reach_us) & (time_us <= at)).sum())
        for one, at in zip(code, time_us, strict=True)
    )
    assert highest_count(entity, code, time_us) == wanted

"""The demo of a shop ranks items for users, and knows what they buy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.demo import rank_items


@pytest.mark.slow
def test_users_of_a_shop_get_lists(tmp_path: Path) -> None:
    """A bought item is gone; more users meet an item of theirs than a best seller."""
    done: list[str] = []
    ranked = rank_items(
        product="shop",
        state=tmp_path,
        store_server="",
        report=lambda step, _: done.append(step),
    )
    assert done[0] == "simulated a shop"
    assert {one.source_of_list for one in ranked.answers} == {"server"}
    assert {len(set(one.items)) for one in ranked.answers} == {10}
    assert ranked.bought == ranked.answers[0].items[0]
    assert ranked.after.source_of_list == "server"
    assert ranked.bought not in ranked.after.items
    assert len(set(ranked.after.items)) == 10
    assert ranked.met > ranked.met_best

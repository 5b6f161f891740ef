"""The share of requests that find a prepared list, against counted requests."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tollgate.errors import InputError
from tollgate.simulate.shop_traffic import ShopTraffic, hit_share

PAGE = Path(__file__).parents[3] / "docs" / "ranking.md"


def test_the_share_of_two_users_by_hand() -> None:
    """The shares are 2/3 and 1/3; the first user has an event each 30 s on average."""
    traffic = ShopTraffic(users=2, exponent=1.0, events_per_s=0.05)
    first = 2 / 3 * (1 - math.exp(-2)) / 2
    second = 1 / 3 * (1 - math.exp(-1)) / 1
    assert hit_share(traffic, prepared=1, every_s=60.0) == pytest.approx(first)
    assert hit_share(traffic, prepared=2, every_s=60.0) == pytest.approx(first + second)
    assert hit_share(traffic, prepared=0, every_s=60.0) == 0.0
    still = ShopTraffic(users=2, exponent=1.0, events_per_s=0.0)
    assert hit_share(still, prepared=1, every_s=60.0) == pytest.approx(2 / 3)


def test_counted_requests_have_the_share() -> None:
    """Draw events and requests, run every 20 s, and count the lists that hold."""
    traffic = ShopTraffic(users=40, exponent=0.9, events_per_s=2.0)
    chance = np.random.default_rng(5)
    length_s, every_s, prepared = 4_000.0, 20.0, 25
    hits = requests = 0
    for user, share in enumerate(traffic.shares()):
        events = np.sort(chance.uniform(0, length_s, chance.poisson(2 * share * 4_000)))
        asked = chance.uniform(0, length_s, chance.poisson(10 * share * length_s))
        requests += len(asked)
        if user < prepared:
            run = np.floor(asked / every_s) * every_s
            before, after = np.searchsorted(events, [run, asked])
            hits += int((before == after).sum())
    found = hit_share(traffic, prepared=prepared, every_s=every_s)
    assert hits / requests == pytest.approx(found, abs=0.015)
    assert 0.3 < found < 0.5


@pytest.mark.parametrize(
    ("prepared", "every_s", "problem"),
    [(3, 60.0, "prepared: 3 of them"), (1, 0.0, "every_s: 0.0 is not above 0")],
)
def test_wrong_arguments_are_refused(
    prepared: int, every_s: float, problem: str
) -> None:
    traffic = ShopTraffic(users=2, exponent=1.0, events_per_s=0.0)
    with pytest.raises(InputError, match=problem):
        hit_share(traffic, prepared=prepared, every_s=every_s)


def test_the_page_has_these_shares() -> None:
    """The table of docs/ranking.md, row by row."""
    rows = re.findall(
        r"^\| ([\d,]+) \| ([\d.]+) \| (\d+) % \| ([\d.]+) \|"
        r" ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
        PAGE.read_text(),
        re.M,
    )
    assert len(rows) == 5
    for users, exponent, percent, share, *hits in rows:
        count = int(users.replace(",", ""))
        traffic = ShopTraffic(count, float(exponent), count * 3 / 86_400)
        prepared = count * int(percent) // 100
        assert traffic.shares()[:prepared].sum() == pytest.approx(
            float(share), abs=6e-4
        )
        for minutes, hit in zip((1, 5, 15), hits, strict=True):
            found = hit_share(traffic, prepared=prepared, every_s=60.0 * minutes)
            assert found == pytest.approx(float(hit), abs=6e-4)

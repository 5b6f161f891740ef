"""A share of the ids: settled, growing, and as large as it says."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tollgate.engine.decision_stage import in_share

IDS = [b"customer-%d" % number for number in range(20_000)]


def test_a_larger_share_holds_all_of_a_smaller_one() -> None:
    """Nobody leaves when it grows; 0 is nobody and 100 is everybody."""
    last = np.zeros(len(IDS), bool)
    for percent in (0.0, 0.01, 1.0, 5.0, 50.0, 99.9, 100.0):
        chosen = in_share(IDS, percent=percent, seed=3)
        assert not (last & ~chosen).any()
        last = chosen
    assert not in_share(IDS, percent=0.0, seed=3).any()
    assert last.all()


@pytest.mark.parametrize("percent", [1.0, 5.0, 37.5])
def test_it_is_as_large_as_it_says(percent: float) -> None:
    """Within five standard deviations of the binomial."""
    share = percent / 100
    chosen = in_share(IDS, percent=percent, seed=3).mean()
    assert abs(chosen - share) < 5 * (share * (1 - share) / len(IDS)) ** 0.5


def test_seeds_have_nothing_to_do_with_each_other() -> None:
    """Of two shares of a half, a quarter is in both."""
    one, two = (in_share(IDS, percent=50.0, seed=seed) for seed in (1, 2))
    assert abs((one & two).mean() - 0.25) < 5 * (0.25 * 0.75 / len(IDS)) ** 0.5


def test_a_place_is_the_keyed_hash() -> None:
    """BLAKE2b of four bytes, little-endian, the seed as its key."""
    for one in IDS[:50]:
        key = (7).to_bytes(8, "little")
        digest = hashlib.blake2b(one, digest_size=4, key=key).digest()
        place = int.from_bytes(digest, "little") * 100 / 2**32
        assert in_share([one], percent=place, seed=7).tolist() == [False]
        assert in_share([one], percent=place + 1e-6, seed=7).tolist() == [True]


def test_no_ids_are_no_rows() -> None:
    """An empty batch."""
    assert in_share([], percent=50.0, seed=1).shape == (0,)

"""Watermarks of feeds: how they are written, read and judged."""

from __future__ import annotations

import struct

from tollgate.store.lookups import (
    Feeds,
    feed_key,
    pack_watermark,
    unpack_watermark,
)

NOW_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000


def feeds(**max_age_us: int) -> Feeds:
    """The feeds of a product, read once a second."""
    return Feeds("fraud", max_age_us, interval_us=1_000_000)


def test_a_watermark_is_sixteen_bytes_little_endian() -> None:
    """Event time, then the clock of the moment; a time ahead is held back to it."""
    assert feed_key("fraud", "labels") == b"tollgate:fraud:feed:labels"
    packed = pack_watermark(NOW_US - 5, now_us=NOW_US)
    assert struct.unpack("<qq", packed) == (NOW_US - 5, NOW_US)
    assert unpack_watermark(packed) == NOW_US - 5
    assert unpack_watermark(pack_watermark(NOW_US + 9, now_us=NOW_US)) == NOW_US
    assert unpack_watermark(None) is None
    assert unpack_watermark(b"foreign") is None


def test_watermarks_ride_along_once_per_interval() -> None:
    """Write and read with the first call, nothing within a second, then again."""
    watched = feeds()
    first = watched.commands(NOW_US, newest_us=NOW_US - 7)
    assert [command[0] for command in first] == [b"SET", b"MGET"]
    assert unpack_watermark(first[0][2]) == NOW_US - 7
    assert watched.commands(NOW_US + 999_999, newest_us=NOW_US) == []
    later = watched.commands(NOW_US + 1_000_000, newest_us=NOW_US - 50)
    assert unpack_watermark(later[0][2]) == NOW_US  # the newest of all since


def test_a_dry_run_writes_no_watermark() -> None:
    """It reads them only."""
    commands = feeds().commands(NOW_US, newest_us=None)
    assert [command[0] for command in commands] == [b"MGET"]


def test_a_feed_is_stale_when_older_than_declared() -> None:
    """At the limit it is not; without a watermark it is; undeclared it never is."""
    watched = feeds(labels=10 * MINUTE_US)
    assert watched.stale(NOW_US) == {"labels"}
    watched.note([True, [None, pack_watermark(NOW_US - 10 * MINUTE_US, now_us=NOW_US)]])
    assert watched.stale(NOW_US) == frozenset()
    assert watched.ages_us(NOW_US) == {"labels": 10 * MINUTE_US}
    assert watched.stale(NOW_US + 1) == {"labels"}
    assert feeds().stale(NOW_US) == frozenset()


def test_without_an_answer_the_watermarks_grow_old() -> None:
    """What was read last counts; an error in its place changes nothing."""
    watched = feeds(purchases=MINUTE_US)
    watched.note([[pack_watermark(NOW_US, now_us=NOW_US), None]])
    watched.note([ValueError("refused")])
    watched.note([])
    assert watched.stale(NOW_US + MINUTE_US) == frozenset()
    assert watched.stale(NOW_US + MINUTE_US + 1) == {"purchases"}

"""A history of which the store keeps less than its windows count is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import replay
from tollgate.schema import Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
SPEC = """\
version: 1
product: shop
lateness: {lateness}
entities: {{machine: {{key: machine_id, delay: {delay}, cap: {cap}}}}}
features:
  - {{name: n, entity: machine, aggregate: count, window: {window}}}
  - {{name: paid, entity: machine, aggregate: sum, window: {window}}}
"""

OpenStore = Callable[..., RedisStore]


@pytest.fixture
def spec_of(tmp_path: Path) -> Callable[..., FeatureSpec]:
    """Make specs of one entity and one window."""

    def make(
        *, window: str, cap: int = 1024, delay: str = "0s", lateness: str = "1d"
    ) -> FeatureSpec:
        path = tmp_path / "features.yaml"
        text = SPEC.format(window=window, cap=cap, delay=delay, lateness=lateness)
        path.write_text(text)
        return load_spec(path)

    return make


def bought(
    spec: FeatureSpec, at_s: list[int], machine: list[str] | None = None
) -> History:
    """Make purchases of a cent, at seconds from a start, of one machine or of some."""
    frame = pl.DataFrame(
        {
            "transaction_id": [f"t{row}" for row in range(len(at_s))],
            "machine_id": machine or ["m"] * len(at_s),
            "amount": [0.01] * len(at_s),
            "event_time": [START_US + SECOND_US * one for one in at_s],
        }
    )
    return history_of(frame, spec=spec, source="sensors.csv")


def online(
    spec: FeatureSpec, history: History, store: RedisStore, *, batch_rows: int = 1_000
) -> tuple[np.ndarray, np.ndarray]:
    """Replay a history through a real Redis: vectors and degraded bits, in order."""
    vectors = np.full((len(history), len(spec.features)), np.nan)
    bits = np.zeros(len(history), np.uint32)
    for rows, read in replay(
        OnlineFeatures(spec, store), history, read_from_us=0, batch_rows=batch_rows
    ):
        vectors[rows], bits[rows] = read.features, read.degraded
    return vectors, bits


@pytest.mark.parametrize("count", [1_023, 1_024])
def test_up_to_the_cap_online_is_offline(
    spec_of: Callable[..., FeatureSpec],
    store_url: str,
    open_store: OpenStore,
    count: int,
) -> None:
    """One purchase a second within a day: the n-th counts n, and costs n cents."""
    spec = spec_of(window="1d")
    history = bought(spec, list(range(count)))
    offline = build(spec, history)
    vectors, bits = online(spec, history, open_store(store_url, deadline_s=30.0))
    by_hand = np.arange(1, count + 1)
    np.testing.assert_array_equal(offline, np.stack([by_hand, by_hand / 100]).T)
    np.testing.assert_array_equal(vectors, offline)
    assert not (bits & np.uint32(Degraded.WINDOW_OVERFLOW)).any()


def test_one_more_is_refused_because_online_differs(
    spec_of: Callable[..., FeatureSpec], store_url: str, open_store: OpenStore
) -> None:
    """The last of 1,025 has 1,024 online; the line says how to mend it."""
    spec = spec_of(window="1d")
    history = bought(spec, list(range(1_025)))
    vectors, bits = online(
        spec, history, open_store(store_url, deadline_s=30.0), batch_rows=1
    )
    assert vectors[-1].tolist() == [1024, 10.24]
    assert bits[-1] & np.uint32(Degraded.WINDOW_OVERFLOW)
    with pytest.raises(InputError) as caught:
        build(spec, history)
    assert str(caught.value) == (
        "sensors.csv: machine_id: 'm' has 1,025 events within 1d at "
        "2023-11-14T22:30:24.000000 (transaction 't1024'), up to 1,025 in all; the "
        "store keeps 1,024 of an id, so served vectors would differ: set hop: 1s "
        "without a cap for machine, shorten the windows of machine, give it a key with "
        "fewer events per id, or leave events out"
    )
    assert caught.value.exit_status == 2


def test_the_count_is_of_an_id_within_its_window(
    spec_of: Callable[..., FeatureSpec],
) -> None:
    """5,000 purchases in time that leave the window, or of other ids, are none."""
    spec = spec_of(window="1000s", lateness="30d")
    build(spec, bought(spec, list(range(5_000))))
    spec = spec_of(window="1d")
    build(spec, bought(spec, list(range(5_000)), [f"m{at % 5}" for at in range(5_000)]))


def test_the_first_excess_in_time_is_named_with_the_highest_count(
    spec_of: Callable[..., FeatureSpec],
) -> None:
    """Whatever the order of the file; other ids are counted, and so is a low cap."""
    spec = spec_of(window="1h", cap=3)
    at_s = [50, 10, 20, 40, 30, 7_000, 7_001, 7_002, 7_003, 7_004, 7_005]
    history = bought(spec, at_s, ["b"] * 5 + ["a"] * 6)
    with pytest.raises(InputError) as caught:
        build(spec, history)
    text = str(caught.value)
    assert "'b' has 4 events within 1h at 2023-11-14T22:14:00.000000" in text
    assert "(transaction 't3'), up to 5 in all; 2 ids have too many;" in text
    assert "raise its cap (at most 1,024)" in text


def refused_by_hand(
    at_s: list[int], machine: list[str], *, window: int, delay: int, cap: int
) -> bool:
    """Keep lists of the newest purchases; is one that a window counts not in them?"""
    # Ids of the tests are t0, t1, …: ordered by length, then by bytes.
    names = [f"t{row}" for row in range(len(at_s))]
    order = sorted(range(len(at_s)), key=lambda row: (at_s[row], len(names[row]),
                                                      names[row]))  # fmt: skip
    seen: dict[str, list[int]] = {}
    for row in order:
        own = seen.setdefault(machine[row], [])
        own.append(row)
        kept = own[-cap:]
        now = at_s[row]
        counted = [one for one in own if now - delay - window < at_s[one]]
        if delay:
            counted = [one for one in counted if at_s[one] <= now - delay]
        if set(counted) - set(kept):
            return True
    return False


@pytest.mark.parametrize("delay", [0, 4])
def test_a_history_is_refused_exactly_when_a_counted_event_is_dropped(
    spec_of: Callable[..., FeatureSpec], delay: int
) -> None:
    """Against lists, over histories with ties, gaps, bursts and several ids."""
    source = np.random.default_rng(5)
    verdicts = []
    for _ in range(300):
        cap, window = int(source.integers(1, 6)), int(source.integers(1, 9))
        spec = spec_of(window=f"{window}s", cap=cap, delay=f"{delay}s")
        count = int(source.integers(1, 25))
        span = int(source.choice([5, 20, 100]))
        at_s = source.integers(0, span, count).tolist()
        machine = source.choice(["a", "b"], count).tolist()
        expected = refused_by_hand(at_s, machine, window=window, delay=delay, cap=cap)
        verdicts.append(expected)
        history = bought(spec, at_s, machine)
        if expected:
            with pytest.raises(InputError, match="the store keeps"):
                build(spec, history)
        else:
            build(spec, history)
    assert 50 < sum(verdicts) < 250


@pytest.mark.parametrize("delay", ["0s", "10s"])
def test_a_batch_of_a_replay_drops_nothing_that_it_reads(
    spec_of: Callable[..., FeatureSpec],
    store_url: str,
    open_store: OpenStore,
    delay: str,
) -> None:
    """One purchase a second, so that each drops one: batches end before they would."""
    spec = spec_of(window="40s", delay=delay, cap=40 if delay == "0s" else 50)
    history = bought(spec, list(range(600)))
    offline = build(spec, history)
    vectors, bits = online(
        spec, history, open_store(store_url, deadline_s=30.0), batch_rows=400
    )
    np.testing.assert_array_equal(vectors, offline)
    assert not (bits & np.uint32(Degraded.WINDOW_OVERFLOW)).any()

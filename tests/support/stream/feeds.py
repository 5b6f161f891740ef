"""What tests put on a feed of either kind, and how they have it consumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.store_events import Labels, Purchases
from tollgate.stream.consumer import StreamConsumer
from tollgate.stream.events import EventCodec
from tollgate.stream.source import Feed, Source

DAY_US = 86_400_000_000
NOW_US = 1_700_000_000_000_000
LEASE_S = 0.3
WAIT_S = 0.05
LONG_S = 30.0

Made = tuple[Feed, Callable[[], Source], Callable[[], list[dict[str, str]]]]


def purchases(
    *ids: bytes, time_us: int = NOW_US, customer: bytes = b"c", step_us: int = 1
) -> Purchases:
    """Purchases of one customer at one terminal, one after the other."""
    count = len(ids)
    return Purchases(
        transaction_id=list(ids),
        entity_id=[[customer] * count, [b"m"] * count],
        event_time_us=time_us + step_us * np.arange(count),
        cents=np.full(count, 500),
    )


def labels(*ids: bytes, revision: int = 0, label: int = 1) -> Labels:
    """Labels of such purchases."""
    bought = purchases(*ids)
    return Labels(
        transaction_id=bought.transaction_id,
        entity_id=bought.entity_id,
        event_time_us=bought.event_time_us,
        label=np.full(len(ids), label, np.int8),
        label_time_us=bought.event_time_us + 1,
        revision=np.full(len(ids), revision),
    )


def drain(consumer: StreamConsumer, events: int) -> None:
    """Step until so many events were taken."""
    stopped = threading.Event()
    until_s = time.monotonic() + LONG_S
    while events > 0 and time.monotonic() < until_s:
        events -= consumer.step(stopped, wait_s=WAIT_S)
    assert events == 0


def send(feed: Feed, spec: FeatureSpec, *events: Purchases | Labels | bytes) -> int:
    """Put events on a feed, one after the other; how many."""
    codec, sent = EventCodec(spec), 0
    for one in events:
        if isinstance(one, bytes):
            feed.send([b"c"], [one])
            sent += 1
        else:
            write = (
                codec.encode_purchases
                if isinstance(one, Purchases)
                else codec.encode_labels
            )
            feed.send(one.entity_id[0], write(one))  # type: ignore[operator]
            sent += len(one)
    return sent

"""
Kill mosquitto under load, and count the messages that it acknowledged and lost.

    python tests/tollgate/stream/kill_broker.py --kills 5 --autosave changes [--resend]

One publisher, one consumer with a persistent session that is slower, so that messages
wait in the broker, and one broker that gets SIGKILL and starts again on its data.
Prints one JSON object: messages acknowledged to the publisher and never delivered
(lost), those delivered more than once, and the time of a call with 20 messages.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tollgate.errors import StoreError
from tollgate.stream.mqtt import RESEND_S, MqttFeed, MqttSource
from tollgate.testing.mosquitto import Mosquitto
from tollgate.worker import retry

SETTINGS = {
    "second": "autosave_interval 1",
    "changes": "autosave_on_changes true\nautosave_interval 1",
    "half-hour": "autosave_interval 1800",
}
_ALWAYS = "persistence true\nmax_queued_messages 0\nset_tcp_nodelay true\n"
LAST_S = 20.0  # after the last message
BATCH = 20


class _Consumer:
    """Count each message's deliveries, and commit what came."""

    def __init__(self, source: MqttSource) -> None:
        self.deliveries: dict[bytes, int] = {}
        self.last_s = time.monotonic()
        self.pause_s = 0.1
        self._source = source
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                found = self._source.poll(most=100, wait_s=0.1)
            except StoreError:
                time.sleep(0.1)
                continue
            for one in found:
                self.deliveries[one.value] = self.deliveries.get(one.value, 0) + 1
                self.last_s = time.monotonic()
            time.sleep(self.pause_s)
            self._source.commit()

    def stop(self) -> None:
        """End it."""
        self._ended.set()
        self._thread.join()


def run(
    *, kills: int, autosave: str, resend: bool, rate: float, seed: int = 0
) -> dict[str, Any]:
    """Publish, kill and count."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        settings = f"{_ALWAYS}{SETTINGS[autosave]}\n"
        with Mosquitto(Path(folder), settings=settings) as broker:
            source = MqttSource(broker.url, topic="load", group="load")
            feed = MqttFeed(
                broker.url, topic="load", resend_s=RESEND_S if resend else 0.0
            )
            while not source.partitions():
                time.sleep(0.01)
            time.sleep(2.5)  # the session is stored
            consumer = _Consumer(source)
            acknowledged: list[bytes] = []
            calls_s: list[float] = []
            ended = threading.Event()
            publisher = threading.Thread(
                target=_publish, args=(feed, acknowledged, calls_s, rate, ended)
            )
            publisher.start()
            for _ in range(kills):
                time.sleep(chance.uniform(3.0, 6.0))
                broker.kill()
                time.sleep(0.2)
                broker.start()
            time.sleep(3.0)
            ended.set()
            publisher.join()
            consumer.pause_s = 0.0
            while time.monotonic() < consumer.last_s + LAST_S:
                if len(consumer.deliveries) >= len(acknowledged):
                    break
                time.sleep(0.1)
            consumer.stop()
            source.close()
            feed.close()
    seen = consumer.deliveries
    return {
        "autosave": autosave,
        "resend": resend,
        "kills": kills,
        "acknowledged": len(acknowledged),
        "lost": sum(one not in seen for one in acknowledged),
        "delivered_again": sum(count > 1 for count in seen.values()),
        "call_ms_p50": round(float(np.median(calls_s)) * 1e3, 2),
        "call_ms_p99": round(float(np.percentile(calls_s, 99)) * 1e3, 2),
        "published_per_s": round(BATCH / max(BATCH / rate, float(np.mean(calls_s)))),
    }


def _publish(
    feed: MqttFeed,
    acknowledged: list[bytes],
    calls_s: list[float],
    rate: float,
    ended: threading.Event,
) -> None:
    while not ended.is_set():
        first = len(acknowledged)
        batch = [f"{first + place:08d}".encode() + b"x" * 200 for place in range(BATCH)]
        began_s = time.monotonic()
        retry(
            lambda batch=batch: feed.send([b"k"] * BATCH, batch),
            errors=(StoreError,),
            failed=lambda error: None,
            stopped=threading.Event(),
        )
        took_s = time.monotonic() - began_s
        calls_s.append(took_s)
        acknowledged += batch
        time.sleep(max(0.0, BATCH / rate - took_s))


def main() -> None:
    """Read the arguments and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--autosave", choices=SETTINGS, default="second")
    parser.add_argument("--resend", action="store_true")
    parser.add_argument("--rate", type=float, default=2_000.0)
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps(run(**vars(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()

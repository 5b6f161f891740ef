"""
Values of hot entities: `python -m loadtests.skew`.

The test takes the fraud features with a hop on both entities, and a history of 30 days
in which ids follow Zipf's law, and one customer at one terminal has 1,000 purchases a
second for a part of it. It replays the history through a real Redis, and reports the
rows that differ from the offline features, the largest value, and the processor time of
Redis for a payment of the hot entity and of ordinary ones. Exit status 1 if a row
differs or is marked, a value has over 4,096 bytes, or a payment of the hot entity costs
over 1.5 times that of an ordinary one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import redis

from loadtests.harness import (
    Report,
    add_repository,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.load.surroundings import commit, hardware
from tollgate.replay import LOAD_DEADLINE_S, replay
from tollgate.schema import Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

I64 = npt.NDArray[np.int64]

MOST_BYTES = 4_096
MOST_RATIO = 1.5
BUSY = b"busy"
DAYS = 30
_DAY_US = 86_400_000_000
_START_US = 1_700_000_000_000_000
_BUSY_PER_S = 1_000
_BATCH_ROWS = 32


class Figures(msgspec.Struct, frozen=True):
    """
    Results of a run.

    Attributes:
        rows: Purchases of the history, all of them compared.
        busy_rows: Purchases of the hot entity among them.
        different: Rows with another vector than offline.
        marked: Rows with a degraded bit other than a cold start.
        values: Values in the store.
        largest: Bytes of the largest value, per entity, at its highest.
        busy_us: Redis's processor time for a payment of the hot entity, per round; µs.
        ordinary_us: The same for a payment of an ordinary id, in the same rounds.
        redis: Version of Redis.
    """

    rows: int
    busy_rows: int
    different: int
    marked: int
    values: int
    largest: dict[str, int]
    busy_us: list[float]
    ordinary_us: list[float]
    redis: str

    @property
    def ratio(self) -> float:
        """Return the median over the rounds of busy to ordinary."""
        pairs = zip(self.busy_us, self.ordinary_us, strict=True)
        return statistics.median(busy / other for busy, other in pairs)

    @property
    def ok(self) -> bool:
        """Return whether every limit is met."""
        well = self.rows > 0 and not (self.different or self.marked)
        small = max(self.largest.values()) <= MOST_BYTES
        return well and small and self.ratio <= MOST_RATIO


def main(arguments: Sequence[str]) -> int:
    """Run and report; exit status 1 if a limit is broken."""
    parser = command_parser("skew")
    add_repository(parser)
    parser.add_argument("--hop", default="1h", help="of both entities")
    parser.add_argument("--purchases", type=int, default=100_000)
    parser.add_argument(
        "--busy-s", type=int, default=60, help="seconds of 1,000 purchases of one id"
    )
    parser.add_argument("--ids", type=int, default=2_000, help="of each entity")
    parser.add_argument("--zipf", type=float, default=1.2, help="exponent, over 1")
    parser.add_argument("--payments", type=int, default=10_000, help="timed, a round")
    parser.add_argument("--rounds", type=int, default=5)
    return run_command(
        parser,
        arguments,
        measure=measure,
        least={"purchases": 1_000, "ids": 100, "payments": 100, "rounds": 1},
    )


def measure(options: argparse.Namespace) -> Report:
    """Run, and write the report."""
    figures = run(options)
    text = to_text(figures, command=options.command)
    return Report(text, ok=figures.ok)


def run(options: argparse.Namespace) -> Figures:
    """Replay the history, then time payments."""
    with temporary_folder("skew") as folder, EmbeddedRedis(folder) as server:
        spec = spec_with_hop(options.repository, folder, options.hop)
        history = skewed_history(
            spec,
            purchases=options.purchases,
            busy_rows=options.busy_s * _BUSY_PER_S,
            ids=options.ids,
            zipf=options.zipf,
        )
        store = RedisStore(server.url, deadline_s=LOAD_DEADLINE_S)
        online = OnlineFeatures(spec, store)
        client = redis.Redis.from_url(server.url)
        say(f"replaying {len(history):,} purchases")
        different, marked, largest = compare(online, history, client)
        say("timing payments")
        start_us = int(history.event_time_us.max())
        busy = [BUSY] * options.payments
        ordinary = ordinary_ids(history, options.payments)
        busy_us: list[float] = []
        ordinary_us: list[float] = []
        for at in range(options.rounds):
            for ids, times in (([busy, busy], busy_us), (ordinary, ordinary_us)):
                first_us = start_us + at * 1_000 * options.payments
                batch = payments(ids, first_us=first_us, prefix=f"{at}-{len(busy_us)}")
                times.append(processor_us(online, batch, client))
        return Figures(
            rows=len(history),
            busy_rows=sum(one == BUSY for one in history.entity_id["customer_id"]),
            different=different,
            marked=marked,
            values=client.dbsize(),
            largest=larger(largest, largest_values(client, spec)),
            busy_us=busy_us,
            ordinary_us=ordinary_us,
            redis=str(client.info("server")["redis_version"]),
        )


def spec_with_hop(repository: Path, folder: Path, hop: str) -> FeatureSpec:
    """Read the fraud features with a hop of every entity."""
    text = (repository / "fraud_features" / "1" / "features.yaml").read_text()
    path = folder / "features.yaml"
    path.write_text(text.replace("    hop: 0\n", f"    hop: {hop}\n"))
    spec = load_spec(path)
    if any(one.tiles is None for one in spec.entities):
        problem = "each entity must have hop: 0, which the test replaces"
        raise InputError(str(repository), problem, where="fraud_features")
    return spec


def skewed_history(
    spec: FeatureSpec, *, purchases: int, busy_rows: int, ids: int, zipf: float
) -> History:
    """
    Make purchases of 30 days whose ids follow Zipf's law, in the order of time.

    From the middle of the 20th day on, one customer buys at one terminal 1,000 times a
    second. One purchase in a hundred is a fraud that becomes known within 14 days.
    """
    source = np.random.default_rng(7)
    many_us = source.integers(0, DAYS * _DAY_US, purchases)
    busy_us = 39 * _DAY_US // 2 + 1_000 * np.arange(busy_rows)
    time_us = np.concatenate([many_us, busy_us]) + _START_US
    rows = len(time_us)
    columns = [
        np.concatenate(
            [
                [f"{name}{one % ids}" for one in source.zipf(zipf, purchases)],
                [BUSY.decode()] * busy_rows,
            ]
        )
        for name in "ct"
    ]
    known_us = time_us + source.integers(0, 14 * _DAY_US, rows)
    frame = pl.DataFrame(
        {
            "transaction_id": [f"p{one}" for one in range(rows)],
            "customer_id": columns[0],
            "terminal_id": columns[1],
            "amount": np.round(source.gamma(2, 30, rows), 2),
            "event_time": pl.Series(time_us).cast(pl.Datetime("us")),
            "label": (source.random(rows) < 0.01).astype(np.int8),
            "label_time": pl.Series(known_us).cast(pl.Datetime("us")),
        }
    )
    return history_of(frame.sort("event_time"), spec=spec, source="skewed")


def compare(
    online: OnlineFeatures, history: History, client: redis.Redis
) -> tuple[int, int, dict[str, int]]:
    """
    Replay a history in batches of 32, and compare each vector with the offline one.

    Returns:
        Rows that differ, rows that are marked, and the largest values, which are read
        about a hundred times on the way.
    """
    expected = build(online.spec, history)
    different = marked = done = 0
    largest: dict[str, int] = {}
    step = max(len(history) // 100, 1)
    for rows, vectors in replay(
        online, history, read_from_us=0, batch_rows=_BATCH_ROWS
    ):
        different += int((vectors.features != expected[rows]).any(axis=1).sum())
        marks = vectors.degraded & ~np.uint32(Degraded.COLD_START)
        marked += int(np.count_nonzero(marks))
        if (done + len(rows)) // step > done // step:
            largest = larger(largest, largest_values(client, online.spec))
        done += len(rows)
    return different, marked, largest


def largest_values(client: redis.Redis, spec: FeatureSpec) -> dict[str, int]:
    """Return the bytes of the largest value of each entity."""
    found = {}
    for name in spec.entity_names:
        keys = list(client.scan_iter(f"tollgate:*:{name}:*", count=1_000))
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.strlen(key)
        found[name] = max(pipeline.execute(), default=0)
    return found


def larger(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the larger number of each entity."""
    return {name: max(one.get(name, 0), size) for name, size in other.items()}


def ordinary_ids(history: History, count: int) -> list[list[bytes]]:
    """
    List ids of customers and terminals that are neither rare nor busy, in turns.

    They have between half and twice the mean number of purchases of an id.
    """
    columns = []
    for key in ("customer_id", "terminal_id"):
        ids, purchases = np.unique(history.entity_id[key], return_counts=True)
        mean = purchases[ids != BUSY].mean()
        chosen = ids[(purchases >= mean / 2) & (purchases <= 2 * mean)].tolist()
        columns.append([chosen[at % len(chosen)] for at in range(count)])
    return columns


def payments(ids: list[list[bytes]], *, first_us: int, prefix: str) -> list[Purchases]:
    """Make payments of one row each, 1 ms apart."""
    return [
        Purchases(
            transaction_id=[f"{prefix}-{at}".encode()],
            entity_id=[[customer], [terminal]],
            event_time_us=np.array([first_us + 1_000 * (at + 1)]),
            cents=np.array([1_000]),
        )
        for at, (customer, terminal) in enumerate(zip(*ids, strict=True))
    ]


def processor_us(
    online: OnlineFeatures, batch: list[Purchases], client: redis.Redis
) -> float:
    """Score payments one by one; return Redis's processor time for each, µs."""
    before_s = _redis_cpu_s(client)
    for one in batch:
        online.score([one], write=[True])
    return (_redis_cpu_s(client) - before_s) / len(batch) * 1e6


def _redis_cpu_s(client: redis.Redis) -> float:
    """Read the processor time that Redis states of itself, to a microsecond."""
    stated = client.info("cpu")
    return float(stated["used_cpu_sys"]) + float(stated["used_cpu_user"])


def to_text(figures: Figures, *, command: str) -> str:
    """Write the report."""
    largest = ", ".join(
        f"{name} {size:,}" for name, size in sorted(figures.largest.items())
    )
    busy, ordinary = (
        f"{statistics.median(one):.1f} ({min(one):.1f} … {max(one):.1f})"
        for one in (figures.busy_us, figures.ordinary_us)
    )
    lines = [
        f"`{command}`",
        "",
        f"commit {commit()}, {hardware()}; Redis {figures.redis}",
        "",
        "| | | limit |",
        "|---|---|---|",
        f"| purchases sent | {figures.rows:,} | |",
        f"| of the hot entity, 1,000 a second | {figures.busy_rows:,} | |",
        f"| vectors that differ from offline | {figures.different:,} | 0 |",
        f"| rows that are marked | {figures.marked:,} | 0 |",
        f"| largest value, bytes, of {figures.values:,} | {largest} | {MOST_BYTES:,} |",
        f"| Redis's processor time a payment, µs: busy | {busy} | |",
        f"| ordinary | {ordinary} | |",
        f"| busy : ordinary | {figures.ratio:.2f} | {MOST_RATIO} |",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""
Readings to alarms under load and under kills: `python -m loadtests.readings`.

`tollgate up`, `tollgate alarms run`, and a broker: mosquitto, or a Redis of its own for
Redis Streams. A publisher sends readings on a schedule and notes which ones the broker
acknowledged; a reader of the alarms notes when each came. The first run measures the
time from a reading's place in the schedule to its alarm. In the second one every
reading is reported, while broker, store, server and consumer get SIGKILL in turn: a
reading that was acknowledged and has no message is lost. Prints the tables of
docs/alarms.md.

A product with the sensors of the simulated plant gets readings of such a plant, and a
sensor of each machine fails once: that is an alarm. `--history` fills the windows
first. The fraud product reviews large amounts. Other products get random values.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from loadtests.harness import (
    Report,
    add_repository,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.results.markdown import markdown_table
from loadtests.results.percentiles import latency_of
from tollgate.errors import ServerError, StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.load.surroundings import measured_on
from tollgate.load.synthetic import synthetic_purchases
from tollgate.repository.releases.served_versions import served_policy, served_spec
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID
from tollgate.server.processes.environment import free_port
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.simulate.plant import SENSORS, simulate_plant
from tollgate.stream.mqtt import MqttFeed, MqttSource
from tollgate.stream.redis_streams import RedisFeed, RedisSource
from tollgate.stream.source import Feed, Source
from tollgate.testing.mosquitto import Mosquitto
from tollgate.testing.supervised import Supervised, supervised
from tollgate.worker import retry

_TOLLGATE = "import sys; sys.path.remove(''); from tollgate.cli import main; main()"
_TICK_S = 0.01  # between two calls of the publisher
_WARM_UP_S = 3.0
_MACHINES = 400
_HISTORY_INTERVAL_S = 3_600  # of a plant's readings before the test
_NEWEST_READINGS = 8  # of a machine: those of the test are like one of them
_HISTORY_SKIPPED = 64  # readings at most, by which machines differ
_FAILED_READINGS = 3  # of a machine whose sensor fails
# The shipped policy of the fraud product reviews every amount from 1,000 on.
_ALARM_AMOUNT, _USUAL_AMOUNT = 1_500.0, 8.0
_ALARM_EVERY = 50
_LAST_S = 60.0  # without a message, before the missing ones count as lost
_BETWEEN_S = 6.0  # kills
_PARTS = ("broker", "store", "server", "consumer")


class Broker(msgspec.Struct, frozen=True):
    """One system of feeds: how to open it, kill it and start it again."""

    url: str
    source: Callable[[str], Source]
    feed: Callable[[str], Feed]
    kill: Callable[[], None]
    restart: Callable[[], None]


class Traffic:
    """
    Publish readings on a schedule, and note when each was due and acknowledged.

    Args:
        spec: Features of the product, which say what a reading contains.
        alarms: Make some readings that raise an alarm, where it is known which do.

    Attributes:
        machines: All readings and their machines.
        raising: These readings and their machines; of a plant's machine the first one.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        *,
        rate: float,
        seconds: float,
        alarms: bool,
        machines: int = _MACHINES,
        history_days: float = 0.0,
    ) -> None:
        self._count = int(rate * seconds)
        self._size = max(1, round(rate * _TICK_S))
        self._key = spec.entities[0].key if spec.entities else TRANSACTION_ID
        if is_plant(spec):
            history = simulated_history(machines=machines, days=history_days)
            columns, raises = _plant_readings(
                history, self._key, self._count, alarms=alarms
            )
        else:
            columns = synthetic_purchases(
                spec, self._count, seed=1, first_us=time.time_ns() // 1000, ids=machines
            )
            raises = np.zeros(self._count, np.bool_)
            if alarms and AMOUNT in columns:
                raises[_ALARM_EVERY - 1 :: _ALARM_EVERY] = True
                columns[AMOUNT] = np.where(raises, _ALARM_AMOUNT, _USUAL_AMOUNT)
        name = f"{time.time_ns()}"
        ids = [f"{name}-{row}" for row in range(self._count)]
        columns[TRANSACTION_ID] = ids
        machine_of = columns.get(self._key, ids)
        self.machines = dict(zip(ids, machine_of, strict=True))
        self.raising = {ids[row]: machine_of[row] for row in np.flatnonzero(raises)}
        self._columns: dict[str, list[Any]] = {
            column: values if isinstance(values, list) else values.tolist()
            for column, values in columns.items()
        }
        self._rate = rate
        self.due_s: dict[str, float] = {}
        self.acknowledged: set[str] = set()

    def publish(self, feed: Feed, stopped: threading.Event) -> None:
        """Publish all; a broker that is away is retried, and the schedule waits."""
        began_s = time.monotonic()
        for first in range(0, self._count, self._size):
            rows = range(first, min(first + self._size, self._count))
            due_s = began_s + first / self._rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            ids = [self._columns[TRANSACTION_ID][row] for row in rows]
            keys = [str(self._columns[self._key][row]).encode() for row in rows]
            events = [self._event(row) for row in rows]
            for one in ids:
                self.due_s[one] = due_s
            if not retry(
                lambda keys=keys, events=events: feed.send(keys, events),  # type: ignore[misc]
                errors=(StoreError,),
                failed=lambda error: None,
                stopped=stopped,
            ):
                return
            self.acknowledged.update(ids)

    def _event(self, row: int) -> bytes:
        values = {name: column[row] for name, column in self._columns.items()}
        values[EVENT_TIME] = time.time_ns() // 1000
        values = {
            name: None if isinstance(one, float) and np.isnan(one) else one
            for name, one in values.items()
        }
        return json.dumps(values).encode()


def is_plant(spec: FeatureSpec) -> bool:
    """Return whether the readings of a product are those of the simulated plant."""
    return {one.name for one in spec.fields} == set(SENSORS) and bool(spec.entities)


def simulated_history(*, machines: int, days: float) -> pl.DataFrame:
    """
    Simulate the readings of a plant before the test; the last one is due now.

    The machines have different numbers of them. With equal numbers, all would fill
    their part of the store in the same second of the test, and fold it into tiles.
    """
    plant = simulate_plant(
        machines=machines,
        days=max(days, 1.0),
        interval_s=_HISTORY_INTERVAL_S,
        faults=0,
        seed=1,
    )
    frame = plant.readings
    newest = frame[EVENT_TIME].max()
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    number = pl.int_range(pl.len()).over("machine")
    skipped = pl.col("machine").hash(seed=1) % _HISTORY_SKIPPED
    left = pl.len().over("machine") - number
    return frame.filter((number >= skipped) | (left <= _NEWEST_READINGS)).with_columns(
        pl.col(EVENT_TIME) + (pl.lit(now) - pl.lit(newest))
    )


def _plant_readings(
    history: pl.DataFrame, key: str, count: int, *, alarms: bool
) -> tuple[dict[str, Any], npt.NDArray[np.bool_]]:
    """
    Make readings that continue a history, its machines in turn.

    Returns:
        Columns of `count` readings; and which of them is the first without a value of
        one sensor, at another time of each machine.
    """
    random = np.random.default_rng(1)
    newest = history.group_by("machine", maintain_order=True).tail(_NEWEST_READINGS)
    names = newest["machine"].unique(maintain_order=True).to_list()
    turns = -(-count // len(names))
    chosen = random.integers(_NEWEST_READINGS, size=(turns, len(names)))
    columns: dict[str, Any] = {
        key: (names * turns)[:count],
        EVENT_TIME: np.zeros(count, np.int64),
    }
    for name in SENSORS:
        own = np.array(newest[name].to_list()).reshape(len(names), _NEWEST_READINGS)
        columns[name] = own[np.arange(len(names)), chosen].reshape(-1)[:count]
    raises = np.zeros(count, np.bool_)
    if alarms:
        at = random.integers(turns // 4, max(turns - 1, turns // 4 + 1), len(names))
        first = at * len(names) + np.arange(len(names))
        first = first[first < count]
        raises[first] = True
        for later in range(_FAILED_READINGS):
            rows = first + later * len(names)
            columns[SENSORS[0]][rows[rows < count]] = np.nan
    return columns, raises


class Alarms:
    """Read alarms in a thread, and note when each reading's came, and its id."""

    def __init__(self, source: Source) -> None:
        self.came_s: dict[str, float] = {}
        self.machines: set[str] = set()
        self.ids: dict[str, set[str]] = {}
        self.messages = 0
        self._newest_s = time.monotonic()
        self._source = source
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def missing(self, due: Mapping[str, str], *, by_machine: bool) -> int:
        """
        Count readings without an alarm.

        Args:
            due: Readings, and their machines.
            by_machine: Whether an alarm of another reading of the machine counts, too.
        """
        if by_machine:
            return sum(machine not in self.machines for machine in due.values())
        return len(due.keys() - self.came_s.keys())

    def wait_for(self, due: Mapping[str, str], *, by_machine: bool) -> None:
        """Wait until none is missing, or none has come for long."""
        while time.monotonic() < self._newest_s + _LAST_S:
            if not self.missing(due, by_machine=by_machine):
                return
            time.sleep(0.1)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()
        self._source.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                found = self._source.poll(most=1_000, wait_s=0.1)
                now_s = time.monotonic()
                for one in found:
                    alarm = json.loads(one.value)
                    name = alarm["reading_id"]
                    self.came_s.setdefault(name, now_s)
                    self.machines.update(alarm["entities"].values())
                    self.ids.setdefault(name, set()).add(alarm["alarm_id"])
                    self.messages += 1
                    self._newest_s = now_s
                self._source.commit()
            except StoreError:
                time.sleep(0.1)


class Outcome(msgspec.Struct, frozen=True):
    """Counts and latencies of one run."""

    broker: str
    kills: int
    acknowledged: int
    messages: int
    lost: int
    raising: int
    raising_lost: int
    duplicates: int
    unrecognised: int
    latency_us: list[int]


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables; exit status 1 if a reading or an alarm was lost."""
    parser = command_parser("readings")
    add_repository(parser)
    parser.add_argument("--product", default="fraud")
    parser.add_argument("--broker", choices=("redis", "mqtt"), action="append")
    parser.add_argument("--rate", type=float, default=2_000.0, help="readings a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--machines", type=int, default=_MACHINES)
    parser.add_argument(
        "--history",
        type=float,
        default=0.0,
        metavar="DAYS",
        help="days of readings that the store has before; for a plant",
    )
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--only-kills", action="store_true")
    return run_command(
        parser,
        arguments,
        measure=measure,
        least={"rate": 1, "seconds": 1, "machines": 1},
    )


def measure(options: argparse.Namespace) -> Report:
    """Serve, publish, kill and count; write the tables."""
    found = []
    for name in options.broker or ("mqtt", "redis"):
        with temporary_folder("readings") as folder:
            found += list(_measure_broker(name, folder, options))
    lost = sum(one.lost for one in found)
    text = to_markdown(found, rate=options.rate)
    return Report(f"{text}\n{measured_on()}. `{options.command}`", ok=not lost)


def _measure_broker(
    name: str, folder: Path, options: argparse.Namespace
) -> Iterator[Outcome]:
    repository: Path = options.repository
    spec = served_spec(repository, product=options.product)
    copy = folder / "model_repository"
    shutil.copytree(repository, copy)
    with (
        _BROKERS[name](folder / "broker") as broker,
        supervised(
            copy, state=folder / "state", words=("up", "--product", options.product)
        ) as server,
    ):
        if options.history:
            _load_history(folder, server, copy, options)
        if not options.only_kills:
            say(f"{name}: {options.rate:g} readings a second for {options.seconds:g} s")
            yield _run(name, broker, server, copy, spec, options, kills=0)
        if not options.no_kills:
            say(f"{name}: {', '.join(_PARTS)} are killed")
            yield _run(name, broker, server, copy, spec, options, kills=len(_PARTS))


def _load_history(
    folder: Path, server: Supervised, repository: Path, options: argparse.Namespace
) -> None:
    say(f"{options.history:g} days of {options.machines} machines into the store")
    path = folder / "history.parquet"
    frame = simulated_history(machines=options.machines, days=options.history)
    frame.write_parquet(path)
    words = (f"--product={options.product}", f"--repository={repository}")
    subprocess.run(
        [
            *(sys.executable, "-c", _TOLLGATE, "materialize", str(path), *words),
            f"--state={server.state}",
        ],
        check=True,
        capture_output=True,
        cwd=folder,
    )


def _run(
    name: str,
    broker: Broker,
    server: Supervised,
    repository: Path,
    spec: FeatureSpec,
    options: argparse.Namespace,
    *,
    kills: int,
) -> Outcome:
    seconds = _WARM_UP_S + (_BETWEEN_S * (kills + 1) if kills else options.seconds)
    traffic = Traffic(
        spec,
        rate=options.rate,
        seconds=seconds,
        alarms=options.product == "fraud" or is_plant(spec),
        machines=options.machines,
        history_days=options.history,
    )
    gc.collect()
    gc.freeze()  # pauses of this process would count as the system's
    label = "every" if kills else "raising"
    readings, alarms = f"readings-{label}", f"alarms-{label}"
    # Without kills, only readings that raise an alarm; with them, or where none is
    # known to raise one, each reading.
    words = [f"--topic={readings}", f"--alarms-topic={alarms}"]
    if not is_plant(spec) or kills:
        words.append("--report=every")
    if kills or not traffic.raising:
        outcomes = served_policy(repository, product=options.product).outcomes
        words.append(f"--outcomes={','.join(outcomes.words)}")
    source = broker.source(alarms)
    until_s = time.monotonic() + _LAST_S
    while not source.partitions() and time.monotonic() < until_s:
        with contextlib.suppress(StoreError):
            source.poll(most=1, wait_s=0.1)  # subscribes, or takes a lease
    reader = Alarms(source)
    feed = broker.feed(readings)
    stopped = threading.Event()
    consumer = _Consumer(broker, server, repository, options.product, words)
    try:
        consumer.start()
        consumer.wait_reading()
        time.sleep(2.0)  # mosquitto stores the sessions each second
        publisher = threading.Thread(target=traffic.publish, args=(feed, stopped))
        publisher.start()
        if kills:
            _kill(broker, server, consumer)
        publisher.join()
        # A machine whose readings are unusual already raises its alarm earlier.
        by_machine = is_plant(spec) and not kills
        due = traffic.raising if traffic.raising and not kills else traffic.machines
        due = {one: due[one] for one in due.keys() & traffic.acknowledged}
        reader.wait_for(due, by_machine=by_machine)
    finally:
        stopped.set()
        consumer.stop()
        reader.close()
        with contextlib.suppress(StoreError):
            feed.close()
    first_s = min(traffic.due_s.values()) + _WARM_UP_S
    raising = traffic.raising.keys() & traffic.acknowledged
    return Outcome(
        broker=name,
        kills=kills,
        acknowledged=len(traffic.acknowledged),
        messages=reader.messages,
        lost=reader.missing(due, by_machine=by_machine),
        raising=len(raising),
        raising_lost=len(raising - reader.came_s.keys()),
        duplicates=reader.messages - len(reader.came_s),
        unrecognised=sum(len(ids) > 1 for ids in reader.ids.values()),
        latency_us=[
            round((came_s - traffic.due_s[one]) * 1e6)
            for one, came_s in reader.came_s.items()
            if traffic.due_s[one] >= first_s
        ],
    )


def _kill(broker: Broker, server: Supervised, consumer: _Consumer) -> None:
    """Kill each part once, the next when the one before works again."""
    for part in _PARTS:
        time.sleep(_BETWEEN_S)
        recovered = len(server.recovered_parts())
        say(f"kill {part}")
        if part == "broker":
            broker.kill()
            time.sleep(0.5)
            broker.restart()
        elif part == "consumer":
            consumer.kill()
            consumer.start()
        else:
            process = "redis-server" if part == "store" else "tritonserver"
            os.kill(server.pid(process), signal.SIGKILL)
            server.wait_recovered(recovered + 1, patience_s=60.0)


class _Consumer:
    """`tollgate alarms run` as a process that can be killed."""

    def __init__(
        self,
        broker: Broker,
        server: Supervised,
        repository: Path,
        product: str,
        words: Sequence[str],
    ) -> None:
        self._command = [
            *(sys.executable, "-c", _TOLLGATE, "alarms", "run"),
            *(f"--repository={repository}", f"--state={server.state}"),
            *(f"--product={product}", f"--url={server.grpc_url}", *words),
        ]
        self._port = free_port()
        self._command.append(f"--metrics-port={self._port}")
        self._environment = os.environ | {"TOLLGATE_FEED_URL": broker.url}
        self._log = server.state.with_suffix(".alarms")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=log,
                stderr=log,
                cwd=self._log.parent,
            )

    def wait_reading(self) -> None:
        """Wait until it reads; before, an MQTT broker stores nothing for it."""
        until_s = time.monotonic() + _LAST_S
        while time.monotonic() < until_s:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(
                    f"http://127.0.0.1:{self._port}/metrics", timeout=5
                ) as page,
            ):
                if re.search(rb"alarms_partitions\{[^}]*\} [1-9]", page.read()):
                    return
            time.sleep(0.1)
        raise ServerError("tollgate alarms run", f"does not read; see {self._log}")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it with SIGTERM."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


@contextlib.contextmanager
def _mqtt(folder: Path) -> Iterator[Broker]:
    with Mosquitto(folder) as server:
        yield Broker(
            url=server.url,
            source=lambda topic: MqttSource(server.url, topic=topic, group="load"),
            feed=lambda topic: MqttFeed(server.url, topic=topic),
            kill=server.kill,
            restart=server.start,
        )


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[Broker]:
    with EmbeddedRedis(folder) as server:
        yield Broker(
            url=server.url,
            source=lambda topic: RedisSource(server.url, feed=topic, group="load"),
            feed=lambda topic: RedisFeed(server.url, feed=topic),
            kill=lambda: os.kill(server.pid, signal.SIGKILL),
            restart=server.restart,
        )


_BROKERS = {"mqtt": _mqtt, "redis": _redis}
_NAMES = {"mqtt": "MQTT (mosquitto)", "redis": "Redis Streams"}


def to_markdown(found: Sequence[Outcome], *, rate: float) -> str:
    """Write a line per run: latencies of undisturbed runs, losses of the others."""
    quiet = []
    for one in (one for one in found if not one.kills):
        times = latency_of(np.array(one.latency_us, np.int64))
        shown = (times.p50_ms, times.p90_ms, times.p99_ms, times.p999_ms, times.max_ms)
        quiet.append(
            (
                _NAMES[one.broker],
                f"{rate:,.0f}",
                f"{one.acknowledged:,}",
                f"{len(one.latency_us):,}",
                *(f"{ms:.1f}" for ms in shown),
                one.lost,
            )
        )
    lines = markdown_table(
        (
            *("readings over", "a second", "acknowledged", "timed alarms"),
            *("p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "maximum ms", "lost"),
        ),
        quiet,
    )
    killed = [
        (
            _NAMES[one.broker],
            one.kills,
            f"{one.acknowledged:,}",
            one.lost,
            f"{one.raising:,}",
            one.raising_lost,
            f"{one.duplicates:,}",
            one.unrecognised,
        )
        for one in found
        if one.kills
    ]
    if killed:
        lines += [
            "",
            *markdown_table(
                (
                    *("readings over", "kills", "readings acknowledged", "lost"),
                    *("alarms due", "lost", "duplicates", "of these with another id"),
                ),
                killed,
            ),
        ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

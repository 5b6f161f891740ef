"""A Redis Cluster of three masters, and batches that spread over all of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import redis
from redis.crc import key_slot

from tests.support.store.redis_processes import free_ports, running
from tollgate.server.processes.child import Child
from tollgate.server.processes.environment import find_redis_server
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.cluster_nodes import SLOTS
from tollgate.store.store_events import Labels, Purchases

NOW_US = 1_600_000_000_000_000
DEADLINE_S = 5.0
RULES = BreakerRules(probe_interval_s=0.02)


class Cluster:
    """
    Three masters and a client for each.

    Attributes:
        ports: Of the masters.
        nodes: Their processes.
        clients: One per master, of redis-py; they follow no redirection.
    """

    def __init__(self, ports: list[int], nodes: list[Child]) -> None:
        self.ports, self.nodes = ports, nodes
        self.clients = [redis.Redis(port=port) for port in ports]
        self.names = [
            one.execute_command("CLUSTER MYID").decode() for one in self.clients
        ]

    @property
    def url(self) -> str:
        """Its address, by all nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{one}" for one in self.ports)

    def join(self) -> None:
        """Share the slots and have the nodes meet."""
        for number, client in enumerate(self.clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            share = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
            client.execute_command("CLUSTER", "ADDSLOTS", *share)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.ports[0])
        self._wait(lambda: all(map(self._ok, self.clients)) and self._agree())

    def _agree(self) -> bool:
        return len({self._map(client) for client in self.clients}) == 1

    def _wait(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + 600
        while not done():
            assert time.monotonic() < until, "the nodes do not agree"
            time.sleep(0.02)

    def _ok(self, client: redis.Redis) -> bool:
        told = client.execute_command("CLUSTER", "INFO")
        told = (
            told
            if isinstance(told, dict)
            else dict(line.split(":") for line in told.decode().split("\r\n") if line)
        )
        ranges = client.execute_command("CLUSTER", "SLOTS")
        return (
            told["cluster_state"] == "ok"
            and told["cluster_known_nodes"] == "3"
            and len(ranges) >= 3
        )

    def of(self, key: bytes) -> int:
        """Number the node that has a key, before any slot moves."""
        return min(key_slot(key) * 3 // SLOTS, 2)

    def move(self, slot: int, source: int, target: int, *, keys: bool = True) -> None:
        """Begin to move a slot; with `keys` also its keys."""
        for node, what, other in (
            (target, "IMPORTING", source),
            (source, "MIGRATING", target),
        ):
            self.clients[node].execute_command(
                "CLUSTER", "SETSLOT", slot, what, self.names[other]
            )
        if keys:
            self.carry(slot, source, target)

    def carry(self, slot: int, source: int, target: int) -> None:
        """Bring a slot's keys to the other node."""
        found = self.clients[source].execute_command(
            "CLUSTER", "GETKEYSINSLOT", slot, 1000
        )
        if found:
            self.clients[source].execute_command(
                *("MIGRATE", "127.0.0.1", self.ports[target], "", 0, 5000),
                *("KEYS", *found),
            )

    def own(self, slots: Sequence[int], target: int) -> None:
        """
        End the move of slots, and wait until all nodes have the same map.

        A node believes the owner with the highest epoch that it has heard of. If a
        target became a source before the others knew its new epoch, its last message
        could claim a slot back, and the new owner would delete the keys.
        """
        for slot in slots:
            for client in (self.clients[target], *self.clients):
                client.execute_command(
                    "CLUSTER", "SETSLOT", slot, "NODE", self.names[target]
                )
        self._wait(self._agree)

    def _map(self, client: redis.Redis) -> frozenset[tuple[str, str, str]]:
        """Read the name, epoch and slots of all nodes, as one node sees them."""
        nodes = client.execute_command("CLUSTER NODES").values()
        return frozenset(
            (one["node_id"], one["epoch"], str(one["slots"])) for one in nodes
        )

    def values(self) -> dict[bytes, bytes]:
        """Read all values of all nodes."""
        return {
            key: client.get(key)
            for client in self.clients
            for key in client.keys("tollgate:*:*:*:*")
        }


@contextlib.contextmanager
def cluster_at(folder: Path) -> Iterator[Cluster]:
    """Run a cluster."""
    ports = free_ports(3)
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(
                running(
                    find_redis_server(),
                    folder / str(port),
                    port=port,
                    options={
                        "port": str(port),
                        "cluster-enabled": "yes",
                        "cluster-node-timeout": "60000",
                        "cluster-require-full-coverage": "no",
                    },
                )
            )
            for port in ports
        ]
        cluster = Cluster(ports, nodes)
        cluster.join()
        yield cluster
        for client in cluster.clients:
            client.close()


def purchases(rows: int, *, first: int = 0, seed: int = 0) -> Purchases:
    """Purchases of many customers at many terminals, over some days."""
    random = np.random.default_rng(seed)
    number = np.arange(first, first + rows)
    return Purchases(
        transaction_id=[b"t%d-%d" % (seed, one) for one in number],
        entity_id=[
            [b"c%d" % one for one in random.integers(0, 40, rows)],
            [b"m%d" % one for one in random.integers(0, 15, rows)],
        ],
        event_time_us=NOW_US + number * 600_000_000,
        cents=random.integers(0, 100_000, rows),
    )


def labels_of(batch: Purchases) -> Labels:
    """Label every purchase fraud."""
    rows = len(batch)
    return Labels(
        transaction_id=batch.transaction_id,
        entity_id=batch.entity_id,
        event_time_us=batch.event_time_us,
        label=np.ones(rows, np.int8),
        label_time_us=batch.event_time_us + 1,
        revision=np.zeros(rows, np.int64),
    )


def same(one: OnlineFeatures, other: OnlineFeatures, batches: list[Purchases]) -> None:
    """Score batches in both, the last one dry; all that is told must be the same."""
    write = [True] * (len(batches) - 1) + [False]
    pairs = zip(
        one.score(batches, write=write), other.score(batches, write=write), strict=True
    )
    for mine, theirs in pairs:
        assert mine.features.tobytes() == theirs.features.tobytes()
        assert mine.degraded.tolist() == theirs.degraded.tolist(), (
            mine.degraded.tolist(),
            theirs.degraded.tolist(),
            mine.applied.tolist(),
            theirs.applied.tolist(),
        )
        assert mine.applied.tolist() == theirs.applied.tolist()

"""
The nodes of a Redis Cluster: map keys to nodes, and call all nodes at once.

Commands go to all nodes, then replies are read as they come. A node that fails costs
the keys that live there, and gets no calls until it answers a probe.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tollgate.errors import StoreError, StoreTimeout, without_frames
from tollgate.store.fallback.circuit_breaker import BreakerRules, CircuitBreaker, Prober
from tollgate.store.redis.redis_store import (
    HANDSHAKE_S,
    Command,
    Connection,
    WaitCallback,
    call_duration_s,
    describe_error,
    do_nothing,
    load_commands,
)
from tollgate.store.redis.store_address import Address

# One node of a Redis Cluster, its connection and its circuit breaker.

_MAX_OWED = 1_024  # a node replies to each key separately


class Node:
    """
    Combine a connection to a node with its circuit breaker.

    Args:
        address: Address of the node.
        rules: Rules of the circuit breaker.
        deadline_s: Longest duration of a probe.
        needed: Returns True while the node has slots; a node without any is not probed.
    """

    def __init__(
        self,
        address: Address,
        rules: BreakerRules,
        *,
        deadline_s: float,
        needed: Callable[[], bool],
    ) -> None:
        self._link = Connection(address, max_owed=_MAX_OWED)
        self._deadline_s = deadline_s
        self._needed = needed
        self._breaker = CircuitBreaker(time.monotonic, random.random, rules=rules)
        self._prober = Prober(self._breaker, self._probe)

    @property
    def allowed(self) -> bool:
        """Return True if the node may be called now."""
        return self._breaker.allows()

    @property
    def connected(self) -> bool:
        """
        Return True if the connection is open, so that commands can be sent at once.
        """
        return self._link.is_open

    def fileno(self) -> int:
        """Return the socket's file descriptor, for poll."""
        return self._link.fileno()

    def send(self, commands: Sequence[Command], until_s: float) -> None:
        """
        Send commands; `receive` must follow.

        Raises:
            StoreError: They were not sent, or not all; the circuit breaker counts it.
        """
        self._guarded(lambda: self._link.send(commands, until_s))

    def receive(self, count: int, until_s: float) -> list[Any]:
        """
        Read the replies; errors that the node replied are among them.

        Raises:
            StoreError: They did not come in time, or the connection broke.
        """
        replies: list[Any] = self._guarded(lambda: self._link.receive(count, until_s))
        self._breaker.succeeded()
        return replies

    def close(self) -> None:
        """Stop the prober and close the connection."""
        self._prober.close()
        self._link.close()

    def _guarded(self, work: Callable[[], Any]) -> Any:
        errors = self._link.errors
        try:
            return work()
        except errors.TimeoutError as exc:
            error: StoreError = StoreTimeout(self._deadline_s)
            error.__cause__ = exc
        except StoreError as exc:
            error = exc
        except (errors.RedisError, OSError) as exc:
            error = StoreError(f"a node failed: {describe_error(exc)}")
            error.__cause__ = exc
        if self._breaker.failed():
            self._prober.wake()
        raise error

    def _probe(self) -> bool:
        return not self._needed() or self._link.probe(self._deadline_s)


# Map the keys of a Redis Cluster to its nodes.

SLOTS = 16_384

Place = tuple[str, int]  # host, port


class SlotMap:
    """
    Map slots to nodes, as the cluster last reported.

    Attributes:
        places: All nodes that have slots.
    """

    def __init__(self) -> None:
        self.places: frozenset[Place] = frozenset()
        self._of: list[Place | None] = [None] * SLOTS

    def place(self, slot: int) -> Place | None:
        """Return the node that has a slot; None when none is known."""
        return self._of[slot]

    def move(self, slot: int, place: Place) -> None:
        """Assign a slot to another node."""
        self._of[slot] = place
        self.places |= {place}

    def learn(self, reply: Any, *, source: Place) -> bool:
        """
        Take a reply to CLUSTER SLOTS.

        Args:
            reply: Ranges of slots, each with its nodes, the master first.
            source: The node that replied: a node that does not know its own name
                leaves it out.

        Returns:
            True if the reply is valid and has slots.
        """
        found: list[Place | None] = [None] * SLOTS
        try:
            for first, last, master, *_ in reply:
                place = (_host(master[0], source), int(master[1]))
                found[first : last + 1] = [place] * (last + 1 - first)
        except (TypeError, ValueError, IndexError):
            return False
        places = frozenset(place for place in found if place is not None)
        if not places or len(found) != SLOTS:
            return False
        self._of, self.places = found, places
        return True


def _host(name: Any, source: Place) -> str:
    text = name.decode() if isinstance(name, bytes) else ""
    return text if text not in ("", "?") else source[0]


_ROUNDS = 5  # as planned; MOVED; ASK; ASK with the script; and one more
_LEARN_S = 0.25  # between reads of the slot map while it may be outdated
_LATE_S = 0.0005  # for a reply that is there at the deadline, behind a slow one
_SLOTS: Command = (b"CLUSTER", b"SLOTS")
_ASKING: Command = (b"ASKING",)
_KEY_AT = {b"EVALSHA": 3, b"XGROUP": 2, b"XINFO": 2}  # all others: after the name

# Index of each command; True to send ASKING before it.
Plan = dict[Place, list[tuple[int, bool]]]
Sent = list[tuple[int, Command]]  # with the index of its reply; -1: of none


class Nodes:
    """
    Call the nodes of a cluster, each over one connection.

    Args:
        address: Address of a cluster, with some of its nodes.
        deadline_s: Longest duration of one call, connecting included.
        rules: Circuit breaker rules for the nodes.
    """

    def __init__(
        self, address: Address, *, deadline_s: float, rules: BreakerRules
    ) -> None:
        Connection(address.at(address.places[0]))  # raises if a TLS file is unusable
        self._address = address
        self._deadline_s = deadline_s
        self._rules = rules
        self._map = SlotMap()
        self._nodes: dict[Place, Node] = {}
        self._learned_s = 0.0
        self._in_doubt = False

    def close(self) -> None:
        """Drop all connections; the next call opens new ones."""
        while self._nodes:
            self._nodes.popitem()[1].close()

    def _node(self, place: Place) -> Node:
        if place not in self._nodes:
            self._nodes[place] = Node(
                self._address.at(place),
                self._rules,
                deadline_s=self._deadline_s,
                needed=lambda: place in self._map.places,
            )
        return self._nodes[place]

    def run(
        self,
        commands: Sequence[Command],
        until_s: float,
        on_wait: WaitCallback = do_nothing,
    ) -> list[Any]:
        """
        Run commands of one key each; call `on_wait` after they are sent.

        Returns:
            Their replies, in order; an exception for each that is lost.
        """
        from redis.crc import key_slot

        if not any(self._node(place).allowed for place in self._map.places):
            self.learn(until_s)
        replies: list[Any] = [StoreError("no node has its slot")] * len(commands)
        plan: Plan = {}
        for position, command in enumerate(commands):
            place = self._map.place(key_slot(_key(command)))
            if place is None:
                self._in_doubt = True
            else:
                plan.setdefault(place, []).append((position, False))
        scripts: set[Place] = set()
        for _ in range(_ROUNDS):
            self._exchange(
                plan,
                commands,
                replies,
                until_s=until_s,
                scripts=scripts,
                on_wait=on_wait,
            )
            plan, scripts = self._plan_retries(plan, replies)
            on_wait = do_nothing
            if not plan:
                break
        return replies

    def _exchange(
        self,
        plan: Plan,
        commands: Sequence[Command],
        replies: list[Any],
        *,
        until_s: float,
        scripts: set[Place],
        on_wait: WaitCallback,
    ) -> None:
        """Send each node its commands, then read replies as they come."""
        pending: dict[Place, Sent] = {}
        learn = self._in_doubt and time.monotonic() >= self._learned_s + _LEARN_S
        # Nodes without an open connection come last: they may use all the time that is
        # left.
        for place in sorted(plan, key=lambda one: not self._node(one).connected):
            sent = _sent(plan[place], commands, script=place in scripts)
            node = self._node(place)
            if learn and node.connected and node.allowed:
                learn = False
                sent.append((-1, _SLOTS))
            try:
                if not node.allowed:
                    raise StoreError("a node is left alone until it answers")
                node.send([command for _, command in sent], until_s)
            except StoreError as error:
                self._mark_lost(sent, replies, error)
            else:
                pending[place] = sent
        until_s += call_duration_s(on_wait)
        for place, late in self._ready_nodes(pending, until_s):
            sent = pending[place]
            grace_s = until_s if late else max(until_s, time.monotonic() + _LATE_S)
            try:
                received = self._node(place).receive(len(sent), grace_s)
            except StoreError as error:
                self._mark_lost(sent, replies, error)
                continue
            for (position, _), reply in zip(sent, received, strict=True):
                if position >= 0:
                    replies[position] = reply
            if sent[-1][1] is _SLOTS:
                self._update_map(received[-1], source=place)

    def _ready_nodes(
        self, pending: dict[Place, Sent], until_s: float
    ) -> Iterator[tuple[Place, bool]]:
        """Yield nodes as their replies arrive, then those that are late, with True."""
        sockets = {self._node(place).fileno(): place for place in pending}
        poll = select.poll()
        for number in sockets:
            poll.register(number, select.POLLIN)
        while sockets:
            ready = poll.poll(max(0.0, until_s - time.monotonic()) * 1e3)
            if not ready:
                break
            for number, _ in ready:
                poll.unregister(number)
                yield sockets.pop(number), False
        for place in sockets.values():
            yield place, True

    def _plan_retries(self, plan: Plan, replies: list[Any]) -> tuple[Plan, set[Place]]:
        """
        Plan the commands to repeat: redirected ones, and those that lacked the script.
        """
        from redis import exceptions

        retries: Plan = {}
        scripts: set[Place] = set()
        for place, items in plan.items():
            for position, asking in items:
                reply = replies[position]
                if isinstance(reply, exceptions.NoScriptError):
                    scripts.add(place)
                    retries.setdefault(place, []).append((position, asking))
                elif isinstance(reply, exceptions.AskError):
                    target = (reply.host or place[0], reply.port)
                    moved = isinstance(reply, exceptions.MovedError)
                    if moved:
                        self._map.move(reply.slot_id, target)
                        self._in_doubt = True
                    retries.setdefault(target, []).append((position, not moved))
                elif isinstance(reply, exceptions.ClusterDownError):
                    self._in_doubt = True
        return retries, scripts

    def _mark_lost(self, sent: Sent, replies: list[Any], error: StoreError) -> None:
        self._in_doubt = True
        error = without_frames(error)
        for position, _ in sent:
            if position >= 0:
                replies[position] = error

    def learn(self, until_s: float, *, allow_handshake: bool = False) -> bool:
        """
        Query one node after the other for the slot map, over a separate connection.
        """
        for place in dict.fromkeys((*self._map.places, *self._address.places)):
            link = Connection(self._address.at(place))
            extra_s = HANDSHAKE_S if allow_handshake and link.secure else 0.0
            try:
                link.open(until_s + extra_s)
                (reply,) = link.exchange([_SLOTS], until_s + extra_s)
            except (link.errors.RedisError, StoreError, OSError):
                continue
            finally:
                link.close()
            if self._update_map(reply, source=place):
                return True
        return False

    def _update_map(self, reply: Any, *, source: Place) -> bool:
        """Replace the slot map, and close nodes that are not in it."""
        self._learned_s = time.monotonic()
        if not self._map.learn(reply, source=source):
            return False
        self._in_doubt = False
        for place in set(self._nodes) - self._map.places:
            if self._nodes[place].allowed:
                self._nodes.pop(place).close()
        return True


def _sent(
    items: Sequence[tuple[int, bool]], commands: Sequence[Command], *, script: bool
) -> Sent:
    """List the commands to send to a node, preceded by the script if it lacks that."""
    loads = load_commands(commands[position] for position, _ in items) if script else []
    sent: Sent = [(-1, one) for one in loads]
    for position, asking in items:
        if asking:
            sent.append((-1, _ASKING))
        sent.append((position, commands[position]))
    return sent


def _key(command: Command) -> bytes:
    at = _KEY_AT.get(command[0], 1)
    if command[0] == b"XREADGROUP":
        at = command.index(b"STREAMS") + 1
    key: bytes = command[at]
    return key

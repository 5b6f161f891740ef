"""One connection to one Redis: send commands and read replies before a deadline."""

from __future__ import annotations

import logging
import select
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tollgate.errors import InputError, StoreError, StoreLost, without_frames
from tollgate.store.redis.error_text import describe_error
from tollgate.store.redis.store_address import (
    Address,
    connection_arguments,
    connection_maker,
)

log = logging.getLogger(__name__)

Command = tuple[Any, ...]
WaitCallback = Callable[[], object]  # runs while a store works

MAX_OWED = 16  # late replies to wait for; with more, a new connection is opened
# Longest TLS handshake where no request waits for it.
HANDSHAKE_S = 0.25


def do_nothing() -> None:
    """Do nothing; the default for `on_wait`."""


def call_duration_s(on_wait: WaitCallback) -> float:
    """Call `on_wait`, and return how long it took, in seconds."""
    started_s = time.monotonic()
    on_wait()
    return time.monotonic() - started_s


class Connection:
    """
    Manage one connection to Redis, opened on first use and again after a failure.

    Every method that takes `until_s` (of time.monotonic) raises redis-py's TimeoutError
    when that has passed. Each wait for the socket gets the rest of that time;
    redis-py's handshake and a reply that comes in pieces are several waits.

    Args:
        address: A single Redis.
        max_owed: Most late replies to wait for; a connection that owes more is dropped.

    Raises:
        InputError: A file of TLS cannot be used.
    """

    def __init__(self, address: Address, *, max_owed: int = MAX_OWED) -> None:
        import hiredis
        import redis

        self.errors = redis.exceptions
        # redis-py's own code for the same bytes takes six times as long.
        self._pack: Callable[[Command], bytes] = hiredis.pack_command
        self.secure = address.tls is not None
        self._address = address
        self._max_owed = max_owed
        self.is_open = False
        self.opened = 0  # number of connections; after a rise, it may be another Redis
        self._owed = 0  # replies still to come, also of calls that were given up
        self.renew()

    def renew(self) -> None:
        """Drop the connection, and reload the TLS files for the next one."""
        if self.is_open:
            self.close()
        make = connection_maker(self._address)
        self._connection: Any = make(**connection_arguments(self._address))

    def exchange(
        self,
        commands: Sequence[Command],
        until_s: float,
        *,
        on_wait: WaitCallback = do_nothing,
    ) -> list[Any]:
        """
        Send commands and read their replies; errors that Redis replied are among them.

        The time that `on_wait` takes is added to the time that Redis has.
        """
        self.send(commands, until_s)
        until_s += call_duration_s(on_wait)
        return self.receive(len(commands), until_s)

    def send(self, commands: Sequence[Command], until_s: float) -> None:
        """
        Send commands; `receive` must follow.

        A connection that broke since its last use is replaced, once: events are
        idempotent, so it does no harm if the broken one delivered some.

        Raises:
            StoreLost: A new connection broke while sending.
            RedisError, OSError: No connection could be opened, and nothing was sent.
        """
        try:
            self._send([b"".join(map(self._pack, commands))], until_s)
        except self.errors.TimeoutError:
            self._give_up()
            raise
        except BaseException:
            self.close()
            raise
        self._owed += len(commands)

    def receive(self, count: int, until_s: float) -> list[Any]:
        """
        Read the replies to the last commands sent.

        Returns:
            The replies in order; an error that Redis replied is one of them.

        Raises:
            StoreLost: The connection broke before they came.
        """
        try:
            while self._owed > count:
                self._reply(until_s)  # the late reply to a call that was given up
            return [self._reply(until_s) for _ in range(count)]
        except self.errors.TimeoutError:
            self._give_up()
            raise
        except BaseException:
            # A reply that is still to come must never be read as another call's reply.
            self.close()
            raise

    def open(self, until_s: float) -> None:
        """Connect; an open connection stays open."""
        if self.is_open:
            return
        left_s = self._left_s(until_s)
        self._connection.socket_connect_timeout = left_s
        self._connection.socket_timeout = left_s
        try:
            self._connection.connect()
        except BaseException as exc:
            self.close()
            if exc.__context__ is not None:
                # redis-py stores it in a variable of the frame that raised it: a cycle.
                traceback.clear_frames(exc.__context__.__traceback__)
            raise
        self.is_open = True
        self.opened += 1

    def probe(self, deadline_s: float, *commands: Command) -> bool:
        """
        Send PING over a new connection, which stays open.

        Args:
            deadline_s: Longest duration of connecting and of PING, each; TLS gets more
                time to connect, because no request waits here.
            commands: Commands to send after the PING.
        """
        extra_s = HANDSHAKE_S if self.secure else 0.0
        try:
            self.renew()
            self.open(time.monotonic() + deadline_s + extra_s)
            probes = [(b"PING",), *commands]
            alive = self.exchange(probes, time.monotonic() + deadline_s)[0]
        except (self.errors.RedisError, InputError, StoreError, OSError):
            self.close()
            return False
        return not isinstance(alive, Exception)

    def fileno(self) -> int:
        """
        Return the socket's file descriptor, for poll; the connection must be open.
        """
        number: int = self._connection._sock.fileno()
        return number

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        self.is_open = False
        self._owed = 0
        self._connection.disconnect()

    def _give_up(self) -> None:
        # Replies come in order, so late ones can be distinguished from the next call's;
        # a busy store would be even later with a new connection.
        if not 0 < self._owed <= self._max_owed:
            self.close()

    def _send(self, packed: list[bytes], until_s: float) -> None:
        if self.is_open:
            try:
                if not self._ended():
                    self._send_whole(packed, until_s)
                    return
            except self.errors.ConnectionError as exc:
                log.debug("the store's connection is replaced: %s", describe_error(exc))
            self.close()
        self.open(until_s)
        try:
            self._send_whole(packed, until_s)
        except self.errors.ConnectionError as exc:
            raise StoreLost(describe_error(exc)) from exc

    def _ended(self) -> bool:
        """Return True if the other side hung up while no reply was due."""
        # If no replies are due, a readable socket means that the connection ended.
        if self._owed:
            return False
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0))

    def _send_whole(self, packed: list[bytes], until_s: float) -> None:
        self._wait(until_s)
        try:
            self._connection.send_packed_command(packed, check_health=False)
        except self.errors.TimeoutError:
            self.close()  # a command that was sent in part cannot be completed
            raise

    def _reply(self, until_s: float) -> Any:
        """Read one reply; an error that Redis replied is returned."""
        errors = self.errors
        self._wait(until_s)
        try:
            reply = self._connection.read_response(disconnect_on_error=False)
        except errors.ResponseError as exc:
            reply = without_frames(exc)
        except (errors.BusyLoadingError, errors.AuthenticationError):
            raise  # Redis replied with an error, too, and applied nothing
        except errors.TimeoutError:
            raise
        except (errors.RedisError, OSError) as exc:
            raise StoreLost(describe_error(exc)) from exc
        self._owed -= 1
        return reply

    def _wait(self, until_s: float) -> None:
        """Limit the socket's next operation to the time that is left."""
        self._connection._sock.settimeout(self._left_s(until_s))

    def _left_s(self, until_s: float) -> float:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise self.errors.TimeoutError("no time left")
        return left_s

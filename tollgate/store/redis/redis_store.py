"""
Call one Redis within a deadline: its connection, and the Lua function.

`Connection` sends commands and reads replies before a deadline. `RedisStore` runs the
Lua function over one.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import logging
import os
import re
import select
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import resources
from typing import Any

from tollgate import compiled
from tollgate.errors import (
    InputError,
    OutcomeUnknown,
    StoreError,
    StoreLost,
    StoreTimeout,
)
from tollgate.store.redis.store_address import (
    SOURCE,
    Address,
    connection_arguments,
    connection_maker,
    read_address,
)
from tollgate.store.store_events import Call

log = logging.getLogger(__name__)

# redis-py puts the command before an error of a pipeline, and Redis puts the arguments
# after an unknown command: keys and events, so ids and amounts.
_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
_ARGUMENTS = re.compile(r",? with args beginning with.*", re.DOTALL)
_REPLY = re.compile(r"(Protocol Error).*", re.DOTALL | re.IGNORECASE)


def describe_error(error: BaseException) -> str:
    """
    Describe an error in one line that is safe to log.

    Args:
        error: An error of redis-py or of the operating system.
    """
    text = _PIPELINE.sub("", str(error))
    text = _ARGUMENTS.sub("", text)
    return " ".join(_REPLY.sub(r"\1", text).split())


@contextlib.contextmanager
def redis_errors(problem: str) -> Iterator[None]:
    """Raise an error of redis-py or of the system in the block as a StoreError."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError) as exc:
        raise StoreError(f"{problem}: {describe_error(exc)}") from exc


Command = tuple[Any, ...]
WaitCallback = Callable[[], object]  # runs while a store works

MAX_OWED = 16  # late replies to wait for; with more, a new connection is opened
# Most bytes of one read of the socket: the values of a large batch come in few reads.
_READ_BYTES = 1 << 18
_NO_REPLY = object()
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
        self._pack_one: Callable[[Command], bytes] = hiredis.pack_command
        self._make_reader = partial(
            hiredis.Reader,
            protocolError=redis.exceptions.InvalidResponse,
            replyError=redis.connection.DefaultParser.parse_error,
            notEnoughData=_NO_REPLY,
        )
        self._reader: Any = None
        self._buffer = bytearray(_READ_BYTES)
        self._poll = select.poll()
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
            self._send(self._pack(commands), until_s)
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
        self._reader = self._make_reader()
        self._poll = select.poll()
        self._poll.register(self, select.POLLIN)
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

    def readable(self, wait_s: float) -> bool:
        """
        Wait until a reply has begun to come, or the other side hung up.

        Args:
            wait_s: Longest wait; the connection must be open.

        Returns:
            False if nothing came.
        """
        if self._reader.has_data() or (
            self.secure and self._connection._sock.pending()
        ):
            return True
        return bool(self._poll.poll(wait_s * 1e3))

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

    def _pack(self, commands: Sequence[Command]) -> bytes:
        packed: bytes | None = None
        if compiled.events is not None:
            packed = compiled.events.pack_commands(commands)
        return b"".join(map(self._pack_one, commands)) if packed is None else packed

    def _send(self, packed: bytes, until_s: float) -> None:
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
        return self.readable(0)

    def _send_whole(self, packed: bytes, until_s: float) -> None:
        self._left_s(until_s)
        # One system call instead of three, each of which releases the interpreter, for
        # up to 5 ms in a busy step. TLS needs the socket's own methods.
        sent = 0 if self.secure else _written(self.fileno(), packed)
        if sent == len(packed):
            return
        try:
            self._wait(until_s)
            self._connection.send_packed_command([packed[sent:]], check_health=False)
        except self.errors.TimeoutError:
            self.close()  # a command that was sent in part cannot be completed
            raise

    def _reply(self, until_s: float) -> Any:
        """Read one reply; an error that Redis replied is returned."""
        errors = self.errors
        try:
            reply = self._reader.gets(False)
            while reply is _NO_REPLY:
                count = self._read(until_s)
                if not count:
                    raise StoreLost("Connection closed by server.")
                self._reader.feed(self._buffer, 0, count)
                reply = self._reader.gets(False)
        except TimeoutError as exc:
            raise errors.TimeoutError("Timeout reading from socket") from exc
        except (errors.InvalidResponse, OSError) as exc:
            raise StoreLost(describe_error(exc)) from exc
        if isinstance(reply, errors.ConnectionError):
            if isinstance(reply, (errors.BusyLoadingError, errors.AuthenticationError)):
                raise reply  # Redis replied with an error, too, and applied nothing
            raise StoreLost(describe_error(reply))
        self._owed -= 1
        return reply

    def _read(self, until_s: float) -> int:
        """Read bytes that came, or wait for some; return their number, 0 at the end."""
        if self.secure:
            self._wait(until_s)
            return int(self._connection._sock.recv_into(self._buffer))
        while self._poll.poll(self._left_s(until_s) * 1e3):
            with contextlib.suppress(BlockingIOError):
                return os.readv(self.fileno(), [self._buffer])
        raise TimeoutError

    def _wait(self, until_s: float) -> None:
        """Limit the socket's next operation to the time that is left."""
        self._connection._sock.settimeout(self._left_s(until_s))

    def _left_s(self, until_s: float) -> float:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise self.errors.TimeoutError("no time left")
        return left_s


def _written(number: int, content: bytes) -> int:
    """Write as much as a socket takes at once; return the number of bytes."""
    try:
        return os.write(number, content)
    except OSError:  # it is full; or it is closed, and the next attempt reports it
        return 0


class LuaFunction:
    """
    A function that runs inside Redis.

    Args:
        file: Its file in tollgate/store.

    Attributes:
        sha: Name by which a command calls it, once it is loaded.
    """

    def __init__(self, file: str) -> None:
        self._script = resources.files("tollgate.store").joinpath(file).read_bytes()
        self.sha = (
            hashlib.sha1(self._script, usedforsecurity=False).hexdigest().encode()
        )

    def load_command(self) -> Command:
        """Build the command that loads it into a Redis."""
        return ("SCRIPT", "LOAD", self._script)


APPLY, HYSTERESIS = LuaFunction("apply.lua"), LuaFunction("hysteresis.lua")
_FUNCTIONS = {one.sha: one for one in (APPLY, HYSTERESIS)}

Answer = tuple[list[bytes], bytes]
NO_ANSWER: Answer = ([], b"")  # to a call without keys, which is not made


class Mode(bytes, enum.Enum):
    """Mode of a call: see ARGV[1] of apply.lua."""

    DRY = b"0"
    WRITE = b"1"
    WRITE_ONLY = b"2"
    LOAD = b"3"


class RedisStore:
    """
    Call the Lua function in one Redis.

    Args:
        url: redis://, rediss:// or unix:// address.
        deadline_s: Longest duration of one call, connecting included; it may be changed
            between two calls.

    Raises:
        InputError: The address is not one of a single Redis.
    """

    def __init__(self, url: str, *, deadline_s: float) -> None:
        address = read_address(url)
        if address.cluster:
            raise InputError(SOURCE, "is a cluster's; this needs a single Redis")
        self.deadline_s = deadline_s
        self._link = Connection(address)

    @property
    def opened(self) -> int:
        """
        Return the number of connections so far; 0 in a cluster, which does not count.
        """
        return self._link.opened

    def apply(self, calls: list[tuple[Call, Mode]]) -> list[Answer]:
        """
        Run calls of the Lua function in one round trip.

        Args:
            calls: Each call, and its mode.

        Returns:
            Per call: the K values (none if not read); a status byte per event.

        Raises:
            OutcomeUnknown, StoreError: As `flush`.
        """
        return self.flush(calls, extra_commands=())[0]

    def flush(
        self,
        calls: list[tuple[Call, Mode]],
        *,
        extra_commands: Sequence[Command],
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer], list[Any]]:
        """
        Run calls of the Lua function, and commands after them, in one round trip.

        Args:
            calls: Each call, and its mode.
            extra_commands: Plain commands; idempotent ones, on which no answer depends.
            on_wait: Called while the store works; not called when nothing could be
                sent.

        Returns:
            Per call: the K values (none if not read); a status byte per event.
                Per command: its reply, or the error that Redis replied.

        Raises:
            OutcomeUnknown: No reply in time, or the connection broke before it came;
                StoreTimeout, StoreLost. Or only a part was refused.
            StoreError: The store is unavailable, or refused; nothing was applied.
        """
        until_s = time.monotonic() + self.deadline_s
        try:
            commands = [*(call_command(*call) for call in calls), *extra_commands]
            replies = self._run(commands, until_s, on_wait=on_wait)
        except self._link.errors.TimeoutError as exc:
            raise StoreTimeout(self.deadline_s) from exc
        except (self._link.errors.RedisError, OSError) as exc:
            raise StoreError(f"the store failed: {describe_error(exc)}") from exc
        answers = replies[: len(calls)]
        refused = [reply for reply in answers if isinstance(reply, Exception)]
        if refused:
            whole = len(refused) == len(answers)
            kind = StoreError if whole else OutcomeUnknown
            raise kind(f"the store refused: {describe_error(refused[0])}") from refused[
                0
            ]
        return [(reply[:-1], reply[-1]) for reply in answers], replies[len(calls) :]

    def commands(self, call: Call, mode: Mode) -> list[Command]:
        """
        Build the commands that run a call next to others, as `extra_commands`.

        An error that the store replies to one of them is its reply: it is not raised.
        """
        return [call_command(call, mode)]

    def probe(self) -> bool:
        """
        Send PING and the script over a new connection, within the deadline.

        The connection stays open for the next call, and the script is loaded. No
        request waits for this, so TLS gets more time to connect.
        """
        return self._link.probe(self.deadline_s, APPLY.load_command())

    def _run(
        self, commands: list[Command], until_s: float, *, on_wait: WaitCallback
    ) -> list[Any]:
        """Flush commands; repeat those that lacked a script, after loading it."""
        link = self._link
        replies = link.exchange(commands, until_s, on_wait=on_wait)
        missing = [
            position
            for position, reply in enumerate(replies)
            if isinstance(reply, link.errors.NoScriptError)
        ]
        if missing:
            again = [commands[at] for at in missing]
            loads = load_commands(again)
            loaded = link.exchange([*loads, *again], until_s)[len(loads) :]
            for position, reply in zip(missing, loaded, strict=True):
                replies[position] = reply
        return replies

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        self._link.close()


class NoStore(RedisStore):
    """Stand in for a store where none is configured: it is always unavailable."""

    def __init__(self) -> None:
        """Open no connection."""
        self.deadline_s = 0.0

    def flush(
        self,
        calls: list[tuple[Call, Mode]],
        *,
        extra_commands: Sequence[Command],
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer], list[Any]]:
        """Raise StoreError."""
        raise StoreError("no store is configured")

    def probe(self) -> bool:
        """Return False: it stays unavailable."""
        return False

    def close(self) -> None:
        """Do nothing: there is no connection."""


def load_commands(commands: Iterable[Command]) -> list[Command]:
    """Build the commands that load the functions that some commands call."""
    called = dict.fromkeys(one[1] for one in commands if one[0] == b"EVALSHA")
    return [_FUNCTIONS[sha].load_command() for sha in called]


def call_command(call: Call, mode: Mode) -> Command:
    """Build the command that runs a call."""
    return eval_command(
        call.keys,
        mode,
        arguments=call.arguments,
        events=call.events,
        forms=call.forms,
        known=b"".join(call.known),
    )


def eval_command(
    keys: Sequence[bytes],
    mode: Mode,
    *,
    arguments: bytes,
    events: bytes,
    forms: bytes,
    known: bytes = b"",
) -> Command:
    """Build the command that runs the script on some keys."""
    command = (b"EVALSHA", APPLY.sha, len(keys), *keys, mode.value, arguments, events)
    if known:
        return (*command, forms, known)
    return (*command, forms) if forms else command

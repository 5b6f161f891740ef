"""Run the online store of a laptop: a real Redis or Valkey on a unix socket."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from tollgate.errors import ServerError
from tollgate.server.allocator import allocator_environment
from tollgate.server.aof import cut_damaged_tail
from tollgate.server.child import Child
from tollgate.server.lock import FolderLock, make_private_folder
from tollgate.server.redis_children import YieldingChildren
from tollgate.server.server_log import useful_lines
from tollgate.server.socket_path import short_socket_path
from tollgate.server.store_engine import (
    Engine,
    find_engine,
    newest_file,
    require_readable,
    write_record,
)

log = logging.getLogger(__name__)

_START_S = 60.0  # seconds without an answer; a large file takes longer to load
_STOP_S = 20.0


class EmbeddedRedis:
    """
    Run a Redis or Valkey as long as this context, with its data in a folder.

    It listens on a unix socket only and writes every change to an append-only file,
    synced once a second.

    Args:
        state: State folder; data in `redis/`, log in `logs/redis.log`.
        allocator: See tollgate.server.allocator.
        server: A redis-server or valkey-server, by its path or its name on PATH; empty
            for the one that pip installed.

    Raises:
        InputError: The allocator is no file.

    Attributes:
        url: "unix://…", as redis-py reads it; valid inside the context.
        socket_path: The socket.
        pid: The process.
        engine: The program; known inside the context.
    """

    def __init__(self, state: Path, *, allocator: str = "", server: str = "") -> None:
        # It gets a separate environment, without the libraries that this process
        # preloads.
        self._allocator = allocator_environment(allocator, environment={})
        self._state = state.resolve()
        self._data = self._state / "redis"
        self._log = self._state / "logs" / "redis.log"
        self._stack = contextlib.ExitStack()
        self._child: Child | None = None
        self._yielding: YieldingChildren | None = None
        self._begin: Callable[[], None] | None = None
        self._server = server
        self.engine: Engine | None = None
        self.socket_path = Path()

    @property
    def url(self) -> str:
        """Address of its socket."""
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int:
        """Its process id; 0 when it is not running."""
        return self._child.pid if self._child else 0

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._child is not None and self._child.alive()

    def __enter__(self) -> EmbeddedRedis:
        engine = find_engine(self._server)
        with contextlib.ExitStack() as stack:
            make_private_folder(self._data)
            lock = FolderLock(self._data, name="lock")
            stack.callback(lock.release)
            before = require_readable(self._data, engine)
            make_private_folder(self._log.parent)
            path = short_socket_path(self._data / "redis.sock")
            self.socket_path = stack.enter_context(path)
            self._begin = partial(self._start_whole, engine, lock=lock)
            self._begin()
            stack.callback(self._end)
            if before != engine.writes:
                write_record(self._data, engine)
                if before is not None:
                    log.warning(
                        "%s: the store of %s is now one of %s",
                        *(self._data, before, engine.writes),
                    )
            self.engine = engine
            self._stack = stack.pop_all()
        return self

    def answers(self) -> bool:
        """Return whether it answers within a second, also while it loads its data."""
        return _ping(self.socket_path).startswith((b"+PONG", b"-LOADING"))

    def restart(self) -> None:
        """
        Restart on the same socket and data, in place of a process that died or hangs.

        Raises:
            ServerError: It did not answer in time.
        """
        if self._begin is None:
            raise ServerError("the store", "was never started here")
        child = self._let_go()
        if child is not None:
            child.stop(grace_s=0.0)
        self._begin()

    def _start_whole(self, engine: Engine, *, lock: FolderLock) -> None:
        """Start it; if its file has a damaged end, cut that off and start again."""
        try:
            self._start(engine, lock=lock)
        except ServerError as error:
            if not cut_damaged_tail(newest_file(self._data), engine=engine):
                raise error
            self._start(engine, lock=lock)

    def _start(self, engine: Engine, *, lock: FolderLock) -> None:
        offset = self._log.stat().st_size if self._log.exists() else 0
        self.socket_path.unlink(missing_ok=True)  # of a process that was killed
        child = Child(
            _arguments(engine, socket_path=self.socket_path, data=self._data),
            name=engine.process,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
            | self._allocator,
            log=self._log,
            keep_fds=(lock.fd,),
        )
        until = time.monotonic() + _START_S
        while not (answer := _ping(self.socket_path)).startswith(b"+PONG"):
            if answer.startswith(b"-LOADING"):
                until = time.monotonic() + _START_S
            if not child.alive() or time.monotonic() > until:
                child.stop(grace_s=1.0)
                raise ServerError(
                    child.name,
                    f"{child.status()} before it answered; its log is {self._log}",
                    log=useful_lines(self._log, offset=offset),
                )
            time.sleep(0.005)
        self._child = child
        self._yielding = YieldingChildren(child.pid)

    def _let_go(self) -> Child | None:
        """Return the process, if there is one, and stop watching its children."""
        if self._yielding is not None:
            self._yielding.close()
        child, self._child, self._yielding = self._child, None, None
        return child

    def stop(self) -> None:
        """Let it write everything to disk and end; a second call does nothing."""
        self._stack.close()

    def _end(self) -> None:
        child = self._let_go()
        if child is not None and not child.stop(grace_s=_STOP_S):
            log.warning("%s was killed: it did not end in %g s", child.name, _STOP_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _arguments(engine: Engine, *, socket_path: Path, data: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        # A rewrite slows all calls for a second: each page that is written is copied.
        "auto-aof-rewrite-min-size": "512mb",
        "save": "",  # the append-only file is the only record
        # Both would log the arguments of commands: keys with ids, events.
        "slowlog-log-slower-than": "-1",
        "crash-log-enabled": "no",
        "daemonize": "no",
        "databases": "1",
        "maxmemory-policy": "noeviction",  # an evicted entity would look like a new one
        "set-proc-title": "no",
    }
    if engine.logs_calls:
        # Write the calls of the Lua function, not the values they set: 6 KB a row.
        options["lua-replicate-commands"] = "no"
    flags = [part for key, value in options.items() for part in (f"--{key}", value)]
    return [str(engine.program), *flags]


def _ping(path: Path) -> bytes:
    """Return Redis' answer to PING; empty if there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(1.0)
            peer.connect(str(path))
            peer.sendall(b"PING\r\n")
            return peer.recv(64)
    except OSError:
        return b""

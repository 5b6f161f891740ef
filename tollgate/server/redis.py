"""The online store of a laptop: a real Redis on a unix socket, kept in a folder."""

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
from tollgate.server.environment import find_redis_server
from tollgate.server.lock import FolderLock, make_private_folder
from tollgate.server.redis_children import YieldingChildren
from tollgate.server.server_log import useful_lines
from tollgate.server.socket_path import short_socket_path

log = logging.getLogger(__name__)

_START_S = 60.0  # without a sign of life; a large file takes longer to load
_STOP_S = 20.0


class EmbeddedRedis:
    """
    A Redis that lives as long as this context and keeps its data in a folder.

    It listens on a unix socket only and writes every change to an append-only
    file, synced once a second.

    Args:
        state: State folder; data in `redis/`, log in `logs/redis.log`.
        allocator: See tollgate.server.allocator.

    Raises:
        InputError: The allocator is no file.

    Attributes:
        url: "unix://…", as redis-py reads it; valid inside the context.
        socket_path: The socket.
        pid: The process.
    """

    def __init__(self, state: Path, *, allocator: str = "") -> None:
        # Its environment is its own: what this process preloads is not handed on.
        self._allocator = allocator_environment(allocator, environment={})
        self._state = state.resolve()
        self._data = self._state / "redis"
        self._log = self._state / "logs" / "redis.log"
        self._stack = contextlib.ExitStack()
        self._child: Child | None = None
        self._yielding: YieldingChildren | None = None
        self._begin: Callable[[], None] | None = None
        self.socket_path = Path()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int:
        """Its process id; 0 when it is not running."""
        return self._child.pid if self._child else 0

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._child is not None and self._child.alive()

    def __enter__(self) -> EmbeddedRedis:
        binary = find_redis_server()
        with contextlib.ExitStack() as stack:
            make_private_folder(self._data)
            lock = FolderLock(self._data, name="lock")
            stack.callback(lock.release)
            make_private_folder(self._log.parent)
            path = short_socket_path(self._data / "redis.sock")
            self.socket_path = stack.enter_context(path)
            self._begin = partial(self._start_whole, binary, lock=lock)
            self._begin()
            self._stack = stack.pop_all()
        return self

    def answers(self) -> bool:
        """Tell whether it answers within a second, if only that it still loads."""
        return _ping(self.socket_path).startswith((b"+PONG", b"-LOADING"))

    def restart(self) -> None:
        """
        Start again on the same socket and data, in place of one that died or hangs.

        Raises:
            ServerError: It did not answer in time.
        """
        if self._begin is None:
            raise ServerError("redis-server", "was never started here")
        child = self._let_go()
        if child is not None:
            child.stop(grace_s=0.0)
        self._begin()

    def _start_whole(self, binary: Path, *, lock: FolderLock) -> None:
        """Start it, without the last command of its file where that is damaged."""
        try:
            self._start(binary, lock=lock)
        except ServerError as error:
            if not cut_damaged_tail(self._data / "appendonly.aof", binary=binary):
                raise error
            self._start(binary, lock=lock)

    def _start(self, binary: Path, *, lock: FolderLock) -> None:
        offset = self._log.stat().st_size if self._log.exists() else 0
        self.socket_path.unlink(missing_ok=True)  # of one that was killed
        child = Child(
            _arguments(binary, socket_path=self.socket_path, data=self._data),
            name="redis-server",
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
        """Take the process, if there is one, and look at its children no more."""
        if self._yielding is not None:
            self._yielding.close()
        child, self._child, self._yielding = self._child, None, None
        return child

    def stop(self) -> None:
        """Let it write everything to disk and end; a second call does nothing."""
        child = self._let_go()
        if child is not None and not child.stop(grace_s=_STOP_S):
            log.warning("redis-server was killed: it did not end in %g s", _STOP_S)
        self._stack.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _arguments(binary: Path, *, socket_path: Path, data: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        # A rewrite slows all calls for a second: each page that is touched is copied.
        "auto-aof-rewrite-min-size": "512mb",
        # Keep the calls of the Lua function, not the values they set: 6 KB a row.
        "lua-replicate-commands": "no",
        "save": "",  # the append-only file is the only record
        # Both would write the arguments of commands down: keys with ids, events.
        "slowlog-log-slower-than": "-1",
        "crash-log-enabled": "no",
        "daemonize": "no",
        "databases": "1",
        "maxmemory-policy": "noeviction",  # an evicted entity would look like a new one
        "set-proc-title": "no",
    }
    flags = [part for key, value in options.items() for part in (f"--{key}", value)]
    return [str(binary), *flags]


def _ping(path: Path) -> bytes:
    """Hear what Redis answers; nothing when it does not."""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(1.0)
            peer.connect(str(path))
            peer.sendall(b"PING\r\n")
            return peer.recv(64)
    except OSError:
        return b""

"""Run the online store of a laptop: a real Redis or Valkey on a unix socket."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

from tollgate.errors import ServerError
from tollgate.server.processes.allocator import allocator_environment
from tollgate.server.processes.child import Child
from tollgate.server.processes.server_log import useful_lines
from tollgate.server.processes.socket_path import short_socket_path
from tollgate.server.processes.state_lock import FolderLock, make_private_folder
from tollgate.server.processes.store_engine import (
    Engine,
    find_engine,
    newest_file,
    require_readable,
    write_record,
)
from tollgate.worker import Worker

# Cut the damaged tail off an append-only file of Redis.
#
# Redis itself accepts a file that ends in the middle of a command. It does not start on
# a tail of garbage, which a power loss also leaves behind. This module moves everything
# after the last complete command to another file, so that the store starts.

log = logging.getLogger(__name__)

# More than a second of writes at full load; earlier damage is not a tail, and an
# operator must repair it.
TAIL_BYTES = 64 << 20
_ANALYSIS = re.compile(rb"size=(\d+), ok_up_to=(\d+)")


def cut_damaged_tail(aof: Path, *, engine: Engine) -> bool:
    """
    Move the damaged tail of an append-only file aside; return whether there was one.

    Args:
        aof: The file; the tail is written next to it, as `….damaged-<seconds>`.
        engine: Its server; the same program checks such files if called by another
            name.
    """
    if not aof.is_file():
        return False
    answer = subprocess.run(
        [f"{engine.writes.engine}-check-aof", str(aof)],
        executable=engine.program,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    found = _ANALYSIS.search(answer.stdout)
    if found is None:
        return False
    size, good = int(found[1]), int(found[2])
    if not 0 < size - good <= TAIL_BYTES:
        return False
    aside = aof.with_name(f"{aof.name}.damaged-{int(time.time())}")
    with aof.open("r+b") as file:
        file.seek(good)
        aside.write_bytes(file.read())
        file.truncate(good)
        os.fsync(file.fileno())
    log.warning(
        "%s: the last %d of %d bytes are damaged; they are now in %s",
        *(aof, size - good, size, aside),
    )
    return True


# Lower the priority of Redis' child processes, so that request processing comes first.
#
# Redis rewrites its append-only file in a child process. That takes a core for seconds,
# which the store and the steps need; no request waits for the rewrite.

_LOOK_S = 0.25
_LEAST = 19  # the nice value of the lowest priority
_USUAL_NICE = 20  # RLIMIT_NICE counts from 20 down to the nice value: 0
_CAP_SYS_NICE = 23  # capabilities(7), sched(7)
# Redis holds the writes of that time in memory until its child is done; on a machine
# without spare processor time, this must not go on for ever.
PATIENCE_S = 60.0


class YieldingChildren:
    """
    Run the children of a process at idle priority, for a limited time.

    A user without the right to restore the priority, such as most users, sets the
    lowest nice value instead.

    Args:
        patience_s: Seconds after which a child gets normal priority again.
    """

    def __init__(self, pid: int, *, patience_s: float = PATIENCE_S) -> None:
        self._children = Path(f"/proc/{pid}/task/{pid}/children")
        self._patience_s = patience_s
        self._found_s: dict[int, float] = {}
        self._returns = may_return()
        self._ended = threading.Event()
        self._worker = Worker(
            "redis-children", self._look, pause_s=_LOOK_S, stopped=self._ended
        )
        self._worker.start()

    def close(self) -> None:
        """Stop looking; a child that exists stays as it is."""
        self._worker.stop()

    def _look(self) -> None:
        try:
            alive = [int(one) for one in self._children.read_text().split()]
        except OSError:  # the process ended, or this kernel lists no children
            self._ended.set()
            return
        now_s = time.monotonic()
        before = self._found_s
        self._found_s = {pid: before.get(pid, now_s) for pid in alive}
        for pid, found_s in self._found_s.items():
            # The child may have ended meanwhile.
            with contextlib.suppress(OSError):
                if self._returns:
                    _allow(pid, usual=now_s - found_s >= self._patience_s)
                else:
                    os.setpriority(os.PRIO_PROCESS, pid, _LEAST)


def may_return() -> bool:
    """Return whether the priority can be restored: by CAP_SYS_NICE or RLIMIT_NICE."""
    most, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if most >= _USUAL_NICE or most == resource.RLIM_INFINITY:
        return True
    lines = Path("/proc/self/status").read_text().splitlines()
    rights = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(rights, 16) >> _CAP_SYS_NICE & 1)


def _allow(pid: int, *, usual: bool) -> None:
    """Set normal or idle scheduling of a process."""
    policy = os.SCHED_OTHER if usual else os.SCHED_IDLE
    if os.sched_getscheduler(pid) != policy:
        os.sched_setscheduler(pid, policy, os.sched_param(0))


_START_S = 60.0  # seconds without an answer; a large file takes longer to load
_STOP_S = 20.0


class EmbeddedRedis:
    """
    Run a Redis or Valkey as long as this context, with its data in a folder.

    It listens on a unix socket only and writes every change to an append-only file,
    synced once a second.

    Args:
        state: State folder; data in `redis/`, log in `logs/redis.log`.
        allocator: See tollgate.server.processes.allocator.
        server: A redis-server or valkey-server, by its path or its name on PATH; empty
            for the one that pip installed.

    Raises:
        InputError: The allocator is no file.

    Attributes:
        url: "unix://…", as redis-py reads it; valid inside the context.
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

    def __exit__(self, *_: object) -> None:
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

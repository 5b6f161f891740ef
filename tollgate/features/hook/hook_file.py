"""
Read the hook of a features.yaml from the same folder, and join it to its features.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import Path

from tollgate.errors import HookError, SpecError
from tollgate.features.hook.source_rules import HookText, read_text
from tollgate.features.spec.spec_definition import Feature, Hook
from tollgate.features.spec.spec_document import RawSpec
from tollgate.schema import AMOUNT, EVENT_TIME

HOOK_FILE = "hook.py"
MAX_BYTES = 64 * 1024  # every segment of the spool contains it


class HookSource:
    """
    Read the hook of a file whose features are not linked yet.

    Args:
        raw: The file.
        path: Path of the file.

    Raises:
        SpecError: The file and the hook name different columns.
        HookError: The hook cannot be read, or breaks a rule for hooks.
    """

    def __init__(self, raw: RawSpec, path: Path) -> None:
        self.path = path.with_name(HOOK_FILE)
        if raw.hook != HOOK_FILE:
            problem = f"{raw.hook!r} is not {HOOK_FILE}, a file next to this one"
            raise SpecError(path, problem, where="hook")
        self.source = _read(self.path)
        self.text = read_text(self.source, self.path)
        self._require_request(raw)
        self._require_columns(raw, path)

    @property
    def fields(self) -> frozenset[str]:
        """Return the columns of the request that are declared fields."""
        return frozenset(self.text.request) - {AMOUNT, EVENT_TIME}

    def inputs(self, before: Sequence[Feature]) -> tuple[int, ...]:
        """
        Find the features that the hook reads among those before its first column.

        Raises:
            HookError: One does not exist.
        """
        names = [one.name for one in takewhile(lambda one: one.hook is None, before)]
        for name, line in self.text.features.items():
            self._require(name, names, line, "no feature before the hook's first one")
        return tuple(names.index(name) for name in self.text.features)

    def linked(self, features: Sequence[Feature]) -> Hook:
        """Join the hook to the features of the file."""
        names = [one.name for one in features]
        return Hook(
            path=str(self.path),
            source=self.source,
            request=tuple(self.text.request),
            features=tuple(names.index(name) for name in self.text.features),
            columns=tuple(self.text.columns),
        )

    def _require_request(self, raw: RawSpec) -> None:
        columns = [AMOUNT, EVENT_TIME] if raw.amount else [EVENT_TIME]
        for one in raw.fields:
            if one.use != "events" and (one.type == "number" or one.vocabulary):
                columns.append(one.name)
        for name, line in self.text.request.items():
            self._require(name, columns, line, "no column of the request")

    def _require_columns(self, raw: RawSpec, path: Path) -> None:
        declared = {one.hook: one.name for one in raw.features if one.hook is not None}
        for column, name in declared.items():
            if column not in self.text.columns:
                given = ", ".join(self.text.columns)
                problem = f"{column!r} is none of what {HOOK_FILE} returns: {given}"
                raise SpecError(path, problem, where=f"features.{name}.hook")
        for column, line in self.text.columns.items():
            if column not in declared:
                problem = f"{column!r} is returned, and no feature takes it"
                raise HookError(self.path, problem, where=f"line {line}")

    def _require(self, name: str, known: Collection[str], line: int, what: str) -> None:
        if name not in known:
            problem = f"{name!r} is {what}: there is {', '.join(known) or 'none'}"
            raise HookError(self.path, problem, where=f"line {line}")


def read_hook(raw: RawSpec, path: Path) -> HookSource | None:
    """
    Read the hook of a file, if it has one.

    Raises:
        SpecError: A feature takes a column of a hook that the file does not name.
        HookError: See `HookSource`.
    """
    if raw.hook is not None:
        return HookSource(raw, path)
    for one in raw.features:
        if one.hook is not None:
            problem = (
                f"takes a column of a hook, and the file has no `hook: {HOOK_FILE}`"
            )
            raise SpecError(path, problem, where=f"features.{one.name}.hook")
    return None


def text_of(hook: Hook) -> HookText:
    """Return the names that a hook uses, with their lines."""
    return read_text(hook.source, Path(hook.path))


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise HookError(path, f"cannot be read: {exc.strerror}") from exc
    if len(content) > MAX_BYTES:
        raise HookError(path, f"has {len(content)} bytes, {MAX_BYTES} are allowed")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        line = content[: exc.start].count(b"\n") + 1
        raise HookError(path, "is not UTF-8", where=f"line {line}") from exc

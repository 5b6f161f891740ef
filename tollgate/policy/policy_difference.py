"""Describe the differences between two policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from tollgate.policy.policy_document import RawPolicy, RawScore

_NAMED = ("lists", "segments", "rules")  # lists of named things
_LAST = ("contributions", "reasons")


class Change(msgspec.Struct, frozen=True):
    """
    One difference between two policies.

    Attributes:
        where: The key, for example rules.large_amount.when.
        what: "added", "removed", "changed" or "moved".
    """

    where: str
    what: str
    words: str


def compare(old: RawPolicy, new: RawPolicy) -> tuple[Change, ...]:
    """List the differences; those of texts come last."""
    before, after = _plain(old), _plain(new)
    lower = isinstance(new.score, RawScore) and new.score.worse == "lower"
    found: list[Change] = []
    for key in sorted(before, key=lambda one: one in _LAST):
        if key in _NAMED:
            found += _items(key, before[key], after[key], lower=lower)
        else:
            found += _values(key, before[key], after[key], lower=lower)
    return tuple(found)


def _plain(policy: RawPolicy) -> dict[str, Any]:
    """Convert a policy to dicts; lists of named things become dicts by their names."""
    plain = {name: _said(value) for name, value in msgspec.to_builtins(policy).items()}
    for key in _NAMED:
        plain[key] = {
            one["name"]: {
                name: _said(value)
                for name, value in one.items()
                if name != "name" and value is not None
            }
            for one in plain[key]
        }
    return plain


def _said(value: Any) -> Any:
    """Leave out keys that are missing in the file, and empty values."""
    if not isinstance(value, dict):
        return value
    return {name: one for name, one in value.items() if one is not None and one != {}}


def _items(
    key: str, old: Mapping[str, Any], new: Mapping[str, Any], *, lower: bool
) -> Iterator[Change]:
    for name, item in old.items():
        if name in new:
            yield from _values(f"{key}.{name}", item, new[name], lower=lower)
        else:
            yield Change(f"{key}.{name}", "removed", _text(item))
    for name, item in new.items():
        if name not in old:
            place = list(new).index(name) + 1
            yield Change(f"{key}.{name}", "added", f"as number {place}: {_text(item)}")
    if key == "rules":
        yield from _moves(list(old), list(new))


def _moves(old: list[str], new: list[str]) -> Iterator[Change]:
    """Find the rules that now precede others which they followed before."""
    common = [name for name in new if name in old]
    before = [name for name in old if name in new]
    for name in common:
        passed = set(before[: before.index(name)]) - set(common[: common.index(name)])
        if passed:
            words = f"is now before {', '.join(one for one in common if one in passed)}"
            yield Change(f"rules.{name}", "moved", words)


def _values(where: str, old: Any, new: Any, *, lower: bool) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict) and not _is_when(where):
        for name in [*old, *(one for one in new if one not in old)]:
            place = f"{where}.{name}"
            if name not in new:
                words = (
                    f"{_text(old[name])}{_hint(place, old[name], None, lower=lower)}"
                )
                yield Change(place, "removed", words)
            elif name not in old:
                words = (
                    f"{_text(new[name])}{_hint(place, None, new[name], lower=lower)}"
                )
                yield Change(place, "added", words)
            else:
                yield from _values(place, old[name], new[name], lower=lower)
    elif old != new:
        yield Change(
            where,
            "changed",
            f"{_text(old)} → {_text(new)}{_hint(where, old, new, lower=lower)}",
        )


def _is_when(where: str) -> bool:
    """Return whether a key holds conditions, which are compared as one value."""
    return where.endswith(".when")


def _hint(where: str, old: Any, new: Any, *, lower: bool) -> str:
    """
    Describe the effect of a changed threshold; a missing one is never reached.

    Args:
        lower: True if a lower score is worse.
    """
    *_, parent, word = ["", *where.split(".")]
    if parent != "thresholds":
        return ""
    if new is None:
        return f": milder, no score gives {word}"
    stricter = old is None or (new > old if lower else new < old)
    return ": stricter" if stricter else ": milder"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    dumped: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return dumped.removesuffix("\n").removesuffix("\n...")

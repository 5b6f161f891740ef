"""
Allow and deny lists: sets of ids in the store, next to the values.

A list holds ids of one kind: of transactions, or of one entity. The feature step reads
them in the one round trip that it makes anyway; `tollgate lists` fills them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tollgate.errors import InputError


class LookupList(msgspec.Struct, frozen=True):
    """
    Describe a list that a policy uses.

    Attributes:
        name: Name in the rules.
        of: Input whose ids it holds, for example customer_id.
        key: Key of the set in the store.
    """

    name: str
    of: str
    key: bytes


def list_key(product: str, name: str) -> bytes:
    """Return the store key of a list."""
    return f"tollgate:{product}:list:{name}".encode()


def lists_text(lists: Iterable[LookupList]) -> str:
    """Print lists as the parameter `lists`: `name:of=key`, joined by commas."""
    return ",".join(f"{one.name}:{one.of}={one.key.decode()}" for one in lists)


def read_lists(text: str) -> tuple[LookupList, ...]:
    """
    Read the parameter `lists`; bit i of `list_hits` is the i-th of them.

    Raises:
        InputError: The text does not have the format of `lists_text`.
    """
    found: list[LookupList] = []
    for part in filter(None, text.split(",")):
        label, _, key = part.partition("=")
        name, _, of = label.partition(":")
        if not (name and of and key):
            raise InputError("lists", f"{part!r} is not NAME:INPUT=KEY")
        found.append(LookupList(name, of, key.encode()))
    return tuple(found)

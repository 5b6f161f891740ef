"""
Allow and deny lists: sets of ids in the store, beside the values.

A list holds ids of one kind: of transactions, or of one entity. The feature step asks
for them in the one round trip that it makes anyway; `tollgate lists` fills them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tollgate.errors import InputError


class LookupList(msgspec.Struct, frozen=True):
    """
    A list that a policy asks for.

    Attributes:
        name: As rules name it.
        of: Input whose ids it holds, for example customer_id.
        key: Of the set in the store.
    """

    name: str
    of: str
    key: bytes


def list_key(product: str, name: str) -> bytes:
    """Name the store key of a list."""
    return f"tollgate:{product}:list:{name}".encode()


def lists_text(lists: Iterable[LookupList]) -> str:
    """Print lists as the parameter `lists`: `name:of=key`, joined by commas."""
    return ",".join(f"{one.name}:{one.of}={one.key.decode()}" for one in lists)


def read_lists(text: str) -> tuple[LookupList, ...]:
    """
    Read the parameter `lists`; bit i of `list_hits` is the i-th of them.

    Raises:
        InputError: It is not what `lists_text` prints.
    """
    found: list[LookupList] = []
    for part in filter(None, text.split(",")):
        label, _, key = part.partition("=")
        name, _, of = label.partition(":")
        if not (name and of and key):
            raise InputError("lists", f"{part!r} is not NAME:INPUT=KEY")
        found.append(LookupList(name, of, key.encode()))
    return tuple(found)

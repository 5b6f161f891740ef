"""Words for a name that nobody knows: the nearest one, and all there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

# Below this share of common letters a name is not taken for a misspelt other one.
_NEAREST = 0.5


def suggest(name: str, known: Iterable[str]) -> str:
    """
    Name the known name that is nearest to an unknown one, then list all of them.

    Args:
        name: Nobody knows it.
        known: All names there are; their order does not matter.
    """
    names = sorted(set(known))
    if not names:
        return "there are none"
    listed = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=_NEAREST)
    return f"did you mean {nearest[0]}? {listed}" if nearest else listed


def unknown_key(content: object, struct: type[msgspec.Struct]) -> tuple[str, str]:
    """
    Find the first key of a mapping that no field of a struct reads.

    Returns:
        The key, and a sentence with the nearest key and all there are; two empty
        strings where every key is known, or where the content is no mapping.
    """
    known = struct.__struct_encode_fields__
    for key in content if isinstance(content, dict) else ():
        if key not in known:
            return str(key), f"is no key; {suggest(str(key), known)}"
    return "", ""

"""Suggest the nearest known name for an unknown one, and list all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

# A name with a smaller share of common letters does not count as a misspelling.
_NEAREST = 0.5


def suggest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is nearest to an unknown one, then list all."""
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
        strings if every key is known, or if the content is no mapping.
    """
    known = struct.__struct_encode_fields__
    for key in content if isinstance(content, dict) else ():
        if key not in known:
            return str(key), f"is no key; {suggest(str(key), known)}"
    return "", ""

"""Merkle trees."""

from __future__ import annotations

import hashlib

import pytest

from tollgate.audit.chain.merkle import climb, path, root


def digest(content: bytes) -> bytes:
    """Hash."""
    return hashlib.sha256(content).digest()


def test_root_follows_rfc_6962() -> None:
    """Of three leaves the first two are joined, then the result and the third."""
    one, two, three = (digest(b"\x00" + name) for name in (b"a", b"b", b"c"))
    pair = digest(b"\x01" + one + two)
    assert root([one, two, three]) == digest(b"\x01" + pair + three)
    assert root([one]) == one
    assert root([]) == digest(b"")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_every_path_leads_to_the_root(size: int) -> None:
    """A leaf and its path give the root; another leaf with it does not."""
    leaves = [digest(bytes([number])) for number in range(size)]
    whole = root(leaves)
    for position, leaf in enumerate(leaves):
        steps = path(leaves, position)
        assert climb(leaf, steps) == whole
        assert climb(digest(b"other"), steps) != whole

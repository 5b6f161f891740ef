"""
Merkle trees over the digests of records (RFC 6962: leaves and nodes differ).

A path of digests proves that one record is among those of a segment, without the
others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

DIGEST_BYTES = 32
LEAF, NODE = b"\x00", b"\x01"  # in front of what is hashed


def root(leaves: Sequence[bytes]) -> bytes:
    """Compute the root of a tree; that of no leaf is the hash of nothing."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    return _levels(leaves)[-1][0]


def path(leaves: Sequence[bytes], position: int) -> list[tuple[str, bytes]]:
    """
    List what proves a leaf: digests to join, each from the left or from the right.

    Args:
        leaves: All of the tree.
        position: Which of them.
    """
    steps = []
    for level in _levels(leaves)[:-1]:
        beside = position ^ 1
        if beside < len(level):
            steps.append(("left" if beside < position else "right", level[beside]))
        position //= 2
    return steps


def climb(leaf: bytes, steps: Sequence[tuple[str, bytes]]) -> bytes:
    """Compute the root that a leaf and its path lead to."""
    found = leaf
    for side, digest in steps:
        pair = digest + found if side == "left" else found + digest
        found = hashlib.sha256(NODE + pair).digest()
    return found


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Build the tree from its leaves up; a node without a sibling goes up as it is."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        paired = len(below) & ~1
        level = [
            hashlib.sha256(NODE + below[at] + below[at + 1]).digest()
            for at in range(0, paired, 2)
        ]
        levels.append(level + below[paired:])
    return levels

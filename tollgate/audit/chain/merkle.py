"""
Merkle trees over the digests of records (RFC 6962: leaves and nodes differ).

A path of digests proves that one record belongs to a segment. The proof does not need
the other records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

DIGEST_BYTES = 32
LEAF, NODE = b"\x00", b"\x01"  # prefixes of the hashed bytes


def root(leaves: Sequence[bytes]) -> bytes:
    """Compute the root of a tree; without leaves, the hash of no bytes."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    return _levels(leaves)[-1][0]


def path(leaves: Sequence[bytes], position: int) -> list[tuple[str, bytes]]:
    """List the steps that prove a leaf: digests to join, from the left or the right."""
    steps = []
    for level in _levels(leaves)[:-1]:
        sibling = position ^ 1
        if sibling < len(level):
            steps.append(("left" if sibling < position else "right", level[sibling]))
        position //= 2
    return steps


def climb(leaf: bytes, steps: Sequence[tuple[str, bytes]]) -> bytes:
    """Compute the root from a leaf and its path."""
    found = leaf
    for side, digest in steps:
        pair = digest + found if side == "left" else found + digest
        found = hashlib.sha256(NODE + pair).digest()
    return found


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """
    Build the levels of the tree from the leaves up; a node without a sibling moves up
    unchanged.
    """
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

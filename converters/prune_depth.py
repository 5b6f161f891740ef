"""Cut a tree off below a depth, whatever framework trained it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Cut(msgspec.Struct, frozen=True):
    """
    The remaining nodes of a tree.

    Attributes:
        kept: Numbers of the nodes that stay, breadth first, the root first.
        left: Left child of each, as a position in `kept`; -1 for a leaf.
        right: Right child of each.
        ended: Positions of the leaves that were splits before.
    """

    kept: list[int]
    left: list[int]
    right: list[int]
    ended: list[int]


def cut_below(left: Sequence[int], right: Sequence[int], *, depth: int) -> Cut:
    """
    Turn every split at a depth into a leaf; the root has depth 0.

    Args:
        left: Left child of each node; negative for a leaf.
        right: Right child of each node.
        depth: Maximum number of splits on a path, 1 or more.
    """
    kept, depths = [0], [0]
    new_left: list[int] = []
    new_right: list[int] = []
    ended = []
    for at, node in enumerate(kept):  # grows during the loop
        if left[node] < 0 or depths[at] == depth:
            if left[node] >= 0:
                ended.append(at)
            new_left.append(-1)
            new_right.append(-1)
            continue
        new_left.append(len(kept))
        new_right.append(len(kept) + 1)
        kept += [int(left[node]), int(right[node])]
        depths += [depths[at] + 1] * 2
    return Cut(kept=kept, left=new_left, right=new_right, ended=ended)

"""Cut a tree off below a depth, whatever framework trained it."""

from __future__ import annotations

import msgspec

from converters.trees import Tree


class Cut(msgspec.Struct, frozen=True):
    """
    The remaining nodes of a tree.

    Attributes:
        nodes: Numbers of the nodes that stay, breadth first, the root first.
        left: Left child of each, as a position in `nodes`; -1 for a leaf.
        right: Right child of each.
        ended: Positions of the leaves that were splits before.
    """

    nodes: list[int]
    left: list[int]
    right: list[int]
    ended: list[int]


def cut_below(tree: Tree, *, depth: int) -> Cut:
    """
    Turn every split at a depth into a leaf; the root has depth 0.

    Args:
        tree: The tree.
        depth: Maximum number of splits on a path, 1 or more.
    """
    left, right = tree.left.tolist(), tree.right.tolist()
    nodes, depths = [0], [0]
    new_left: list[int] = []
    new_right: list[int] = []
    ended = []
    for at, node in enumerate(nodes):  # grows during the loop
        if left[node] < 0 or depths[at] == depth:
            if left[node] >= 0:
                ended.append(at)
            new_left.append(-1)
            new_right.append(-1)
            continue
        new_left.append(len(nodes))
        new_right.append(len(nodes) + 1)
        nodes += [left[node], right[node]]
        depths += [depths[at] + 1] * 2
    return Cut(nodes=nodes, left=new_left, right=new_right, ended=ended)

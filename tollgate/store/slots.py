"""Map the keys of a Redis Cluster to its nodes."""

from __future__ import annotations

from typing import Any

SLOTS = 16_384

Place = tuple[str, int]  # host, port


class SlotMap:
    """
    Map slots to nodes, as the cluster last reported.

    Attributes:
        places: All nodes that have slots.
    """

    def __init__(self) -> None:
        self.places: frozenset[Place] = frozenset()
        self._of: list[Place | None] = [None] * SLOTS

    def place(self, slot: int) -> Place | None:
        """Return the node that has a slot; None when none is known."""
        return self._of[slot]

    def move(self, slot: int, place: Place) -> None:
        """Assign a slot to another node."""
        self._of[slot] = place
        self.places |= {place}

    def learn(self, reply: Any, *, source: Place) -> bool:
        """
        Take a reply to CLUSTER SLOTS.

        Args:
            reply: Ranges of slots, each with its nodes, the master first.
            source: The node that replied: a node that does not know its own name
                leaves it out.

        Returns:
            True if the reply is valid and has slots.
        """
        found: list[Place | None] = [None] * SLOTS
        try:
            for first, last, master, *_ in reply:
                place = (_host(master[0], source), int(master[1]))
                found[first : last + 1] = [place] * (last + 1 - first)
        except (TypeError, ValueError, IndexError):
            return False
        places = frozenset(place for place in found if place is not None)
        if not places or len(found) != SLOTS:
            return False
        self._of, self.places = found, places
        return True


def _host(name: Any, source: Place) -> str:
    text = name.decode() if isinstance(name, bytes) else ""
    return text if text not in ("", "?") else source[0]

"""
Open random streams by name and day, so that each part can change independently.

A stream depends on (seed, name, day) alone. So a longer history begins with the shorter
one, and a new draw in one stream moves no draw of another.
"""

from __future__ import annotations

import enum

import numpy as np


class Stream(enum.IntEnum):
    """Purposes of the streams. The numbers make the streams: never renumber."""

    CUSTOMER_PLACES = 0
    CUSTOMER_HABITS = 1
    TERMINAL_PLACES = 2
    PURCHASE_COUNTS = 3
    PURCHASE_TIMES = 4
    PURCHASE_TERMINALS = 5
    PURCHASE_AMOUNTS = 6
    STOLEN_TERMINALS = 7
    STOLEN_CARDS = 8
    STOLEN_CARD_USES = 9
    LABEL_DELAYS = 10


def generator(seed: int, stream: Stream, *, day: int = 0) -> np.random.Generator:
    """
    Open one stream at its start.

    Args:
        seed: Seed of the whole simulation, at least 0.
        stream: Purpose of the stream.
        day: Day of the history, from 0; the population's streams have only day 0.
    """
    source = np.random.SeedSequence(seed, spawn_key=(int(stream), day))
    return np.random.default_rng(source)

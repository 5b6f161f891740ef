"""Synthetic decisions, for the journal's tests and its two long commands."""

from __future__ import annotations

import numpy as np

from tests.support.checkout import CHECKOUT
from tollgate.features.windows.entity_entries import MISSING
from tollgate.journal.decision_record import Records

REPOSITORY = CHECKOUT / "model_repository"
FEATURES = 15  # of the fraud product
SPEC_HASH = 0xC36F8242C6FA0068
DECIDED_US = 1_750_000_000_000_000


def made(
    rows: int,
    *,
    writer: str = "0123456789abcdef",
    first: int = 0,
    seed: int = 0,
    release: str = "fraud-1",
    spec_hash: int = SPEC_HASH,
    fields: dict[str, np.ndarray] | None = None,
    details: bool = False,
) -> Records:
    """Return synthetic records; the same arguments give the same ones."""
    chance = np.random.default_rng([seed, first])
    fraud = chance.random(rows, np.float32)
    decision = (fraud >= 0.35).astype(np.uint8) + (fraud >= 0.8)
    words = np.array([b"", b"SCORE_REVIEW", b"SCORE_DECLINE|LARGE_AMOUNT"], object)
    decided_us = DECIDED_US + (first + np.arange(rows)) * 1_000
    number = chance.integers(0, 2**32, (6, rows), np.uint32)
    return Records(
        writer=writer,
        first_sequence=first,
        product="fraud",
        release=release,
        spec_hash=spec_hash,
        entities=("customer", "terminal"),
        decided_us=decided_us,
        transaction_id=[f"{writer}-{first + row}".encode() for row in range(rows)],
        entity_id=[
            [f"card-{one}".encode() for one in chance.integers(0, 50, rows)],
            [f"shop-{one}".encode() for one in chance.integers(0, 20, rows)],
        ],
        event_time_us=decided_us - 5_000_000,
        cents=chance.integers(0, 100_000, rows),
        fields={"channel": np.full(rows, MISSING)} if fields is None else fields,
        fingerprint=chance.integers(0, 2**64, rows, np.uint64),
        features=chance.random((rows, FEATURES), np.float32),
        probabilities=np.stack([1 - fraud, fraud], axis=1),
        score=fraud,
        degraded=np.zeros(rows, np.uint32),
        age_ms=number[0] % 100,
        applied=np.ones(rows, np.uint8),
        list_hits=np.zeros(rows, np.uint32),
        decision=decision.astype(np.uint8),
        reason_codes=words[decision].tolist(),
        rules=chance.integers(0, 2**5, rows, np.uint64),
        features_us=number[1] % 5_000,
        model_us=number[2] % 9_000,
        decision_us=number[3] % 900,
        details=[details_of(first + row) for row in range(rows if details else 0)],
    )


def details_of(number: int) -> bytes:
    """Make the details of a record: no text, and every length from 0 on."""
    return bytes(range(256)) * (number % 5) + b"\xff" * (number % 7)

"""
The wire and what travels between the steps: names, types, bits, limits.

Everything that must be the same in two places (a config.pbtxt and a step, a
step and a client) is named here once. Source: docs/contract.md.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

MAX_BATCH_ROWS = 32
MAX_ID_BYTES = 128
MAX_CENTS = 1_000_000_000
MAX_AHEAD_US = 86_400_000_000
MIN_EVENT_TIME_US = 946_684_800_000_000  # 2000-01-01T00:00:00Z
CENTS_TOLERANCE = 1e-6  # relative: what a decimal amount loses as a double
ERROR_BYTES = 192  # an error text in the context; "field: value: rule", cut if longer

CONTEXT_VERSION = 2

TRANSACTION_ID = "transaction_id"
AMOUNT = "amount"
EVENT_TIME = "event_time"

FEATURES = "features"
CONTEXT = "context"
PROBABILITIES = "probabilities"

# Outputs of the ensemble and of the decision step: name -> Triton type.
ANSWER_TYPES = {
    "decision": "TYPE_STRING",
    "score": "TYPE_FP32",
    "reason_codes": "TYPE_STRING",
    "degraded": "TYPE_UINT32",
    "error": "TYPE_STRING",
    "release": "TYPE_STRING",
}
REASON_SEPARATOR = "|"

DRY_RUN = "dry_run"  # request parameters
DEADLINE_US = "deadline_us"

# Parameters of the feature step's configuration, by whoever operates it.
STORE_DEADLINE_PARAMETER = "store_deadline_ms"
STORE_PROBE_PARAMETER = "store_probe_interval_ms"
LAST_KNOWN_SIZE_PARAMETER = "last_known_mb"
LAST_KNOWN_AGE_PARAMETER = "last_known_max_age_s"
UPDATES_PARAMETER = "updates"  # who writes what is scored: one of UPDATES
UPDATES = ("scoring", "stream", "both")

# Parameters that the release adds to the decision step's configuration at load.
RELEASE_PARAMETER = "release"
SPEC_HASH_PARAMETER = "expected_spec_hash"
FEATURE_NAMES_PARAMETER = "feature_names"  # joined by commas, in order
ENTITY_NAMES_PARAMETER = "entity_names"


class Decision(enum.IntEnum):
    """What the caller is told, in ascending order of severity."""

    APPROVE = 0
    REVIEW = 1
    DECLINE = 2


class Degraded(enum.IntFlag):
    """
    Why an answer is worth less than usual; published, never renumbered.

    The bits of one row are OR-ed into the `degraded` output.
    """

    STORE_UNAVAILABLE = 1 << 0  # some features are the declared defaults
    LAST_KNOWN_VECTOR = 1 << 1  # some features come from the local cache
    COLD_START = 1 << 2  # an entity was never seen before this event
    EVENT_TOO_LATE = 1 << 3  # older than the trim horizon: scored, not applied
    WINDOW_OVERFLOW = 1 << 4  # an entity's value hit its cap: windows are too small
    STATE_CORRUPT = 1 << 5  # an entity value failed its checksum: defaults
    MODEL_OUTPUT = 1 << 6  # NaN, outside [0, 1] or of the wrong shape: fallback
    ESSENTIAL_MISSING = 1 << 7  # an essential feature is a default, or too old
    FEED_STALE = 1 << 8  # a feed's watermark is older than declared
    FIELD_MISSING = 1 << 9  # a declared field was left out or unseen: its default


def context_dtype(entities: tuple[str, ...]) -> np.dtype[np.void]:
    """
    Describe one row of the `context` tensor that feature and decision step share.

    Args:
        entities: Names of the product's entities, in the order of its spec.

    Returns:
        A packed structured dtype; its itemsize is the C of `context` UINT8 [N, C].
        Ids lie in fixed slots of MAX_ID_BYTES with their length beside them.
    """
    fields: list[tuple[str, str]] = [
        ("version", "u1"),
        ("dry_run", "u1"),
        ("bad", "u1"),
        ("applied", "u1"),  # Applied
        ("degraded", "<u4"),
        ("spec_hash", "<u8"),
        ("arrival_us", "<i8"),  # CLOCK_MONOTONIC at the start of the feature step
        ("event_time_us", "<i8"),
        ("cents", "<i8"),
        ("age_ms", "<u4"),  # of the oldest last known value used; 0 from the store
        ("transaction_id_length", "<u2"),
        ("transaction_id", f"V{MAX_ID_BYTES}"),
    ]
    for entity in entities:
        fields += [(f"{entity}_id_length", "<u2"), (f"{entity}_id", f"V{MAX_ID_BYTES}")]
    fields += [("error_length", "<u2"), ("error", f"V{ERROR_BYTES}")]
    return np.dtype(fields)


class Applied(enum.IntEnum):
    """What is known of an event's effect on the online store."""

    NO = 0
    YES = 1
    UNKNOWN = 2
    DUPLICATE = 3


Bytes2d = npt.NDArray[np.uint8]

"""
Name the tensors, limits, parameters, headers and bits of the contract with a server.

docs/contract.md defines them; a test holds them equal to the server's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

TRANSACTION_ID = "transaction_id"
AMOUNT = "amount"
EVENT_TIME = "event_time"

# Inputs of the ensemble `fraud`: name -> type on the wire.
FRAUD_INPUTS: Mapping[str, str] = MappingProxyType(
    {
        TRANSACTION_ID: "BYTES",
        "customer_id": "BYTES",
        "terminal_id": "BYTES",
        AMOUNT: "FP64",
        EVENT_TIME: "INT64",
    }
)

REQUEST_ID = "request_id"
EXCLUDE = "exclude"
# Inputs of the ensemble `shop`, which ranks items for a user, and its optional ones.
SHOP_INPUTS: Mapping[str, str] = MappingProxyType(
    {REQUEST_ID: "BYTES", "user_id": "BYTES", EVENT_TIME: "INT64"}
)
SHOP_FIELDS: Mapping[str, str] = MappingProxyType(
    {"slot": "BYTES", "device": "BYTES", EXCLUDE: "BYTES"}
)

MAX_BATCH_ROWS = 32
MAX_ID_BYTES = 128
MAX_CENTS = 1_000_000_000
MIN_EVENT_TIME_US = 946_684_800_000_000  # 2000-01-01T00:00:00Z
CENTS_TOLERANCE = 1e-6  # relative: the error of a decimal amount as a double

# Outputs of an ensemble.
OUTPUTS = ("decision", "score", "reason_codes", "degraded", "error", "release")
# Words of a product's decisions, the mildest first, unless its policy has others.
OUTCOMES = ("approve", "review", "decline")
REASON_SEPARATOR = "|"

# Outputs of an ensemble that ranks; the first three have K values per row.
RANKED_OUTPUTS = ("items", "scores", "source", "degraded", "error", "release")
ITEM_SEPARATOR = "|"  # between the ids in `exclude`
MAX_LIST_SIZE = 50  # K
# Origins of an item; of a list that was prepared ahead with the prefix.
SOURCES = ("personal", "similar", "popular", "fallback")
PREPARED_PREFIX = "prepared:"

# Request parameters.
LIST_SIZE = "count"  # K
DRY_RUN = "dry_run"
DEADLINE_US = "deadline_us"
STORE_DEADLINE_MS = "store_deadline_ms"

# gRPC metadata: the caller's class of a request.
CLASS_HEADER = "tollgate-class"
BULK = "bulk"

OVERLOADED = "overloaded"  # first word of a refusal because of overload


class Degraded(enum.IntFlag):
    """Reasons why a decision is worth less than usual: bits of `degraded`."""

    STORE_UNAVAILABLE = 1 << 0  # some features are the declared defaults
    LAST_KNOWN_VECTOR = 1 << 1  # some features come from the step's local cache
    COLD_START = 1 << 2  # an entity was never seen before this event
    EVENT_TOO_LATE = 1 << 3  # too old: scored, not applied
    WINDOW_OVERFLOW = 1 << 4  # more events than the store holds for one id
    STATE_CORRUPT = 1 << 5  # an entity value failed its checksum: defaults
    MODEL_OUTPUT = 1 << 6  # the model returned no probability: the policy's fallback
    ESSENTIAL_MISSING = 1 << 7  # an essential feature is a default, or too old
    FEED_STALE = 1 << 8  # a feed's watermark is older than declared
    FIELD_MISSING = 1 << 9  # a declared field was left out or unseen: its default
    LOOKUPS_UNREAD = 1 << 10  # lists and stored decisions could not be read
    TABLE_MISSING = 1 << 11  # a table has no valid number: its default
    HOOK_FAILED = 1 << 12  # the product's hook raised: its features are defaults
    HYSTERESIS_UNREAD = 1 << 13  # the state of hysteresis was not read: the raw level

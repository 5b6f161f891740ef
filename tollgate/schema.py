"""
Name the tensors, types, bits and limits of requests and between the steps.

Everything that must be the same in two places (a config.pbtxt and a step, a step and a
client) is named here once. Source: docs/contract.md.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

MAX_BATCH_ROWS = 32
MAX_ID_BYTES = 128
MAX_CENTS = 1_000_000_000
MAX_AHEAD_US = 86_400_000_000
MIN_EVENT_TIME_US = 946_684_800_000_000  # 2000-01-01T00:00:00Z
CENTS_TOLERANCE = 1e-6  # relative: the error of a decimal amount as a double
ERROR_BYTES = 160  # an error text in the context; "field: value: rule", cut if longer

CONTEXT_VERSION = 4
TAG_BYTES = 16  # of an HMAC-SHA256 over a request's features and context
EARLIER_BYTES = 320  # a stored decision in the context, packed

TRANSACTION_ID = "transaction_id"
TRANSACTION = TRANSACTION_ID.removesuffix("_id")  # owner of data without an entity
AMOUNT = "amount"
EVENT_TIME = "event_time"

FEATURES = "features"
EXACT_FEATURES = "exact_features"  # features in float64, for models that need it
CONTEXT = "context"
PROBABILITIES = "probabilities"
CHALLENGER_PROBABILITIES = "challenger_probabilities"  # optional, of a canary

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

# Tensors of a product that ranks items. Between its steps:
CANDIDATE_FEATURES = "candidate_features"  # float32 [N, C, F], input of the model
RANKING_CONTEXT = "ranking_context"  # UINT8 [N, R], for the ranking step
RELEVANCE = "relevance"  # float32 [N, C], output of the model
CHALLENGER_RELEVANCE = "challenger_relevance"  # optional, of a canary
# Output of the model -> name under which the last step gets that of a challenger.
CHALLENGER_OUTPUTS = {
    PROBABILITIES: CHALLENGER_PROBABILITIES,
    RELEVANCE: CHALLENGER_RELEVANCE,
}
# Outputs of its ensemble and of its ranking step: name -> Triton type. The first three
# are [N, K]: K items, the best first.
RANKED_TYPES = {
    "items": "TYPE_STRING",
    "scores": "TYPE_FP32",
    "source": "TYPE_STRING",
    "degraded": "TYPE_UINT32",
    "error": "TYPE_STRING",
    "release": "TYPE_STRING",
}
LIST_OUTPUTS = ("items", "scores", "source")
REQUEST_ID = "request_id"  # of its ensemble, in place of the transaction id
STOCK_PARAMETER = "stock"  # of its first step: name of the list out of stock
# ... of its first step: hash of the files that prepare candidates for the release
RANKER_PARAMETER = "ranker"
EXCLUDE = "exclude"  # optional input: ids of items that the answer must not have
ITEM_SEPARATOR = "|"  # between these ids
MAX_EXCLUDED = 100  # of these ids
LIST_SIZE = "count"  # request parameter: number of items, K
MAX_LIST_SIZE = 50
# Origins of an item in an answer; clients accept the prefix, for lists made ahead.
SOURCES = ("personal", "similar", "popular", "fallback")
PREPARED_PREFIX = "prepared:"
# Fields of the events of such a product, and the words of `action`.
ITEM, ACTION = "item", "action"
ACTIONS = ("view", "cart", "purchase")

ARTIFACT_FILE = "artifact.json"  # the record of a model, in its version directory
# Rule for a row whose id was decided before with other content.
CONFLICT = "conflict: was decided with other content"

# An optional input that our own server passes to the Python steps. Only the refusing
# ensembles under the steps' public names fill it: docs/threat-model.md.
DIRECT_CALL = "direct_call"
_PRIVATE = re.compile(r"--[0-9a-f]{32}(?![0-9a-f])")  # suffix of a private name

DRY_RUN = "dry_run"  # request parameters
DEADLINE_US = "deadline_us"
STORE_DEADLINE_MS = "store_deadline_ms"  # whole milliseconds above 0

# gRPC metadata: the caller's class of a request, and the gateway's clock when it came.
CLASS_HEADER = "tollgate-class"
BULK = "bulk"  # yields to all other classes
ARRIVED_HEADER = "tollgate-arrived"  # s since 1970, such as 1763775000.125
# First word of a refusal because of overload.
OVERLOADED = "overloaded"

# Environment variables of the steps.
STORE_URL_VARIABLE = "TOLLGATE_STORE_URL"
CONTEXT_KEY_VARIABLE = "TOLLGATE_CONTEXT_KEY"  # 64 hexadecimal digits

# Parameters of the feature step's configuration, which operators set.
STORE_DEADLINE_PARAMETER = "store_deadline_ms"
STORE_DEADLINE_LIMIT_PARAMETER = "store_deadline_limit_ms"  # bounds a request's value
STORE_PROBE_PARAMETER = "store_probe_interval_ms"
BREAKER_FAILURES_PARAMETER = "store_breaker_failures"
BREAKER_CALLS_PARAMETER = "store_breaker_calls"
BREAKER_SHARE_PARAMETER = "store_breaker_share"
LAST_KNOWN_SIZE_PARAMETER = "last_known_mb"
TABLES_SIZE_PARAMETER = "tables_mb"
LAST_KNOWN_AGE_PARAMETER = "last_known_max_age_s"
DRY_SHARE_PARAMETER = "dry_share_ms"
UPDATES_PARAMETER = "updates"  # writer of the scored purchases: one of UPDATES
UPDATES = ("scoring", "stream", "both")
APPENDS_PARAMETER = "appends"  # to values that the step has: one of APPENDS
APPENDS = ("in_place", "off")

# Parameters that the release adds to the decision step's configuration at load.
RELEASE_PARAMETER = "release"
SPEC_HASH_PARAMETER = "expected_spec_hash"
FEATURE_NAMES_PARAMETER = "feature_names"  # joined by commas, in order
ENTITY_NAMES_PARAMETER = "entity_names"
FIELDS_PARAMETER = "fields"  # declared fields; `fields_text`

# Parameters that it adds while a challenger decides for a share of the customers.
CHALLENGER_PARAMETER = "challenger"  # release of the challenger
CANARY_PERCENT_PARAMETER = "canary_percent"
CANARY_SEED_PARAMETER = "canary_seed"
INTERLEAVED_PARAMETER = "interleaved"  # if both pick the items of a list in turns

# Parameter that it adds to the feature step's, where the policy has lists.
LISTS_PARAMETER = "lists"  # tollgate/store/id_lists.py
# Parameter of a fused model: its steps and their copies, as JSON.
FUSED_PARAMETER = "fused"
# File next to a step's code on our own server: the release's data for this step.
SLOT_FILE = "slot.json"


class Decision(enum.IntEnum):
    """Decision on a row, in ascending order of severity."""

    APPROVE = 0
    REVIEW = 1
    DECLINE = 2


_OUTCOME_WORD = re.compile(r"[a-z0-9_]{1,32}")
# The report of a trial has these names for other rows.
_RESERVED_OUTCOMES = ("errors", "degraded")


class Outcomes(NamedTuple):
    """
    Words of a product for the levels of a decision, the mildest first.

    The code and its records hold levels; words stand where text enters or leaves.
    """

    words: tuple[str, str, str] = ("approve", "review", "decline")

    @property
    def score_codes(self) -> tuple[str, str]:
        """Return the codes of the two thresholds of the score, the milder first."""
        _, middle, severest = self.words
        return f"SCORE_{middle.upper()}", f"SCORE_{severest.upper()}"

    @property
    def levels(self) -> dict[str, int]:
        """
        Map each word to its level.

        The default words are included: a record has them if its release was unknown
        when it was sealed.
        """
        both = (DEFAULT_OUTCOMES.words, self.words)
        return {word: at for words in both for at, word in enumerate(words)}


DEFAULT_OUTCOMES = Outcomes()


def outcomes_problem(words: Sequence[str]) -> str:
    """Describe why words cannot be the outcomes of a product; empty if they can."""
    if len(words) != len(Decision):
        return f"{len(words)} words, not {len(Decision)}"
    for word in words:
        if not _OUTCOME_WORD.fullmatch(word):
            return f"{word!r} is not 1 to 32 of a to z, 0 to 9 and _"
        if word in _RESERVED_OUTCOMES:
            return f"{word} is reserved"
    if len(set(words)) < len(words):
        return f"{', '.join(words)}: a word stands there twice"
    return ""


class Degraded(enum.IntFlag):
    """
    Reasons why a decision is worth less than usual; published, never renumbered.

    The bits of one row are OR-ed into the `degraded` output.
    """

    STORE_UNAVAILABLE = 1 << 0  # some features are the declared defaults
    LAST_KNOWN_VECTOR = 1 << 1  # some features come from the local cache
    COLD_START = 1 << 2  # an entity was never seen before this event
    EVENT_TOO_LATE = 1 << 3  # too late to count, or for windows as of its time
    WINDOW_OVERFLOW = 1 << 4  # an entity's value hit its cap: windows are too small
    STATE_CORRUPT = 1 << 5  # an entity value failed its checksum: defaults
    MODEL_OUTPUT = 1 << 6  # NaN, outside [0, 1] or of the wrong shape: fallback
    ESSENTIAL_MISSING = 1 << 7  # an essential feature is a default, or too old
    FEED_STALE = 1 << 8  # a feed's watermark is older than declared
    FIELD_MISSING = 1 << 9  # a declared field was left out or unseen: its default
    LOOKUPS_UNREAD = 1 << 10  # lists and stored decisions could not be read
    TABLE_MISSING = 1 << 11  # a table has no valid number: its default
    HOOK_FAILED = 1 << 12  # the product's hook raised: its features are defaults
    HYSTERESIS_UNREAD = 1 << 13  # the state of hysteresis was not read: the raw level


# Bits of a row for which the store gave no complete response.
STORE_LOST = (
    Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR | Degraded.LOOKUPS_UNREAD
)


def public_name(name: str) -> str:
    """Replace private names in a text, such as a step's, by the public ones."""
    return _PRIVATE.sub("", name)


def context_dtype(
    entities: tuple[str, ...], fields: tuple[str, ...] = ()
) -> np.dtype[np.void]:
    """
    Describe one row of the `context` tensor that feature and decision step share.

    Args:
        entities: Names of the product's entities, in the order of its spec.
        fields: Names of its declared fields, in the order of its spec.

    Returns:
        A packed structured dtype; its itemsize is the C of `context` UINT8 [N, C]. Ids
        lie in fixed slots of MAX_ID_BYTES, each next to its length.
    """
    layout: list[tuple[str, str]] = [
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
        ("list_hits", "<u4"),  # bit i: the policy's i-th list holds an id of the row
        ("fingerprint", "<u8"),  # of all inputs; tollgate/engine/row_batches.py
        ("features_us", "<u4"),  # time that the feature step spent on the batch
        ("earlier_length", "<u2"),
        ("earlier", f"V{EARLIER_BYTES}"),  # the stored decision for this id
        ("transaction_id_length", "<u2"),
        ("transaction_id", f"V{MAX_ID_BYTES}"),
    ]
    for entity in entities:
        layout += [(f"{entity}_id_length", "<u2"), (f"{entity}_id", f"V{MAX_ID_BYTES}")]
    layout += [("error_length", "<u2"), ("error", f"V{ERROR_BYTES}")]
    # In the first row of a request: tollgate/steps/context_mac.py.
    layout += [("stream", "<u8"), ("sequence", "<u8"), ("tag", f"V{TAG_BYTES}")]
    layout += [(f"field_{name}", "<i8") for name in fields]  # as features/fields.py
    return np.dtype(layout)


class Applied(enum.IntEnum):
    """Known effect of an event on the online store."""

    NO = 0
    YES = 1
    UNKNOWN = 2
    DUPLICATE = 3


Bytes2d = npt.NDArray[np.uint8]

FieldType = Literal["number", "category"]
MISSING = np.iinfo(np.int64).min  # in place of a field that was not sent
EXACT = "exact"  # in place of a number's decimals: it is a float64


class FieldForm(Protocol):
    """Form of a declared field of the request, as its spec declares it."""

    @property
    def name(self) -> str:
        """Return the name of the input."""

    @property
    def type(self) -> FieldType:
        """
        Return the type: `number` or `category`.

        Numbers are stored in units of their last decimal, categories as hashes.
        """

    @property
    def decimals(self) -> int | None:
        """Return the decimals of a number; None for an exact float64."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Return a category's words; empty where any may come, or none are known."""


class DeclaredField(NamedTuple):
    """A declared field's form, as far as a release passes it to the decision step."""

    name: str
    type: FieldType
    decimals: int | None = 0
    vocabulary: tuple[str, ...] = ()


def fields_text(fields: Iterable[FieldForm]) -> str:
    """Format declared fields: `x=number:2,y=category,z=number:exact`."""
    return ",".join(
        f"{one.name}=number:{EXACT if one.decimals is None else one.decimals}"
        if one.type == "number"
        else f"{one.name}=category"
        for one in fields
    )


def read_fields(text: str) -> tuple[DeclaredField, ...]:
    """
    Read the parameter `fields`.

    Raises:
        ValueError: It does not have the format of `fields_text`.
    """
    found: list[DeclaredField] = []
    for part in filter(None, text.split(",")):
        name, _, form = part.partition("=")
        if form == "category":
            found.append(DeclaredField(name, "category"))
        elif form.startswith("number:"):
            digits = form.removeprefix("number:")
            decimals = None if digits == EXACT else int(digits)
            found.append(DeclaredField(name, "number", decimals))
        else:
            raise ValueError(f"{part!r} is neither NAME=category nor NAME=number:2")
    return tuple(found)


def float_places(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """
    Number float64 values by their position among all of them, 0.0 being 0; int64.

    The positions of a < b are in the same order, so whole numbers can be compared
    instead; -0.0 becomes 0.0, and no value has the position MISSING.

    Args:
        values: Values without NaN.
    """
    bits = values.view(np.int64)
    return np.where(bits >= 0, bits, -(bits & np.iinfo(np.int64).max))


def floats_at(places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the floats at the positions (see `float_places`); NaN for MISSING."""
    size = np.abs(places).view(np.float64)
    found: npt.NDArray[np.float64] = np.copysign(size, places)
    found[places == MISSING] = np.nan
    return found


def plain_numbers(
    whole: npt.NDArray[np.int64], decimals: int | None
) -> npt.NDArray[np.float64]:
    """Return the values of a declared number field; NaN for MISSING."""
    if decimals is None:
        return floats_at(whole)
    return np.where(whole == MISSING, np.nan, whole / 10.0**decimals)


def hash_words(words: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Hash texts of a category (BLAKE2b, 64 bits), int64 [N]; MISSING if empty."""
    known: dict[bytes, int] = {b"": MISSING}
    for word in words:
        if word not in known:
            digest = hashlib.blake2b(word, digest_size=8).digest()
            # The one hash that equals MISSING is replaced.
            known[word] = max(int.from_bytes(digest, "big", signed=True), MISSING + 1)
    return np.fromiter((known[word] for word in words), np.int64, len(words))

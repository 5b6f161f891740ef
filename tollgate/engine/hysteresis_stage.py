"""Turn the raw levels of a batch into answered ones: the hysteresis of a policy."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from tollgate.errors import StoreError
from tollgate.policy.decide import PolicyDecisions
from tollgate.policy.hysteresis import (
    EVIDENCE,
    MAINTENANCE,
    READING,
    Code,
    Evidence,
    Hysteresis,
    Kind,
    answer,
    apply_readings,
    kinds_of,
    pack_evidence,
    unpack_evidence,
)
from tollgate.schema import REASON_SEPARATOR, TRANSACTION, Decision, Degraded
from tollgate.store.fallback.circuit_breaker import BreakerState, CircuitBreaker
from tollgate.store.hysteresis_states import hysteresis_key, reading_command
from tollgate.store.redis.redis_store import RedisStore, describe_error

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]

# Columns of the journal's record, after the declared fields: no field has such a name.
EVIDENCE_FIELDS = tuple(f"hysteresis.{name}" for name in EVIDENCE.names or ())
ROW_KINDS = (*(kind.name.lower() for kind in Kind), "unread")
_UNREAD = np.uint32(Degraded.HYSTERESIS_UNREAD)
_SEPARATOR = REASON_SEPARATOR.encode()


class AnsweredDecisions(PolicyDecisions, frozen=True):
    """
    Decisions of N rows after hysteresis.

    Attributes:
        evidence: EVIDENCE of each row; int64 [N, 3].
    """

    evidence: I64


class HysteresisStage:
    """
    Apply the hysteresis of a policy to batches.

    Args:
        settings: The policy's section.
        product: Name of the product.
        store: Holds the states; its deadline is that of a batch.
        breaker: Circuit breaker of the store; a batch that finds it open is answered
            with raw levels. None for one of its own.
    """

    def __init__(
        self,
        settings: Hysteresis,
        *,
        product: str,
        store: RedisStore,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._settings = settings
        self._product = product
        self._store = store
        self._breaker = breaker or CircuitBreaker(time.monotonic, random.random)

    def apply(
        self,
        context: Array,
        decided: PolicyDecisions,
        *,
        bounds: Sequence[int],
        skipped: Array | None,
    ) -> AnsweredDecisions:
        """
        Apply the readings of a batch to the states of their machines.

        Args:
            context: Of tollgate.schema.context_dtype; [N].
            decided: Decisions of the policy.
            bounds: First row of each request, then the end of the last.
            skipped: Rows that are no new decision; bool [N], None for none.

        Returns:
            The decisions. A row whose state could not be read has its raw level, and
            the bit HYSTERESIS_UNREAD.
        """
        levels = _sent_levels(decided, self._settings)
        evidence = skipped_evidence(decided.decision)
        unread = np.zeros(len(levels), np.bool_)
        rows = np.arange(len(levels)) if skipped is None else np.flatnonzero(~skipped)
        if len(rows):
            self._read(context, levels, rows, bounds, evidence, unread)
        return answered(decided, evidence, settings=self._settings, unread=unread)

    def warm_up(self) -> None:
        """Connect, and load the function: no caller waits for it."""
        self._store.probe()
        reading = np.zeros(1, READING)
        command = reading_command(
            hysteresis_key(self._product, self._settings.entity, b"warm-up"),
            reading.tobytes(),
            settings=self._settings,
            dry=True,
        )
        try:
            self._store.flush([], extra_commands=[command])
        except StoreError as error:
            log.warning("the store did not answer for hysteresis: %s", error)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _read(
        self,
        context: Array,
        level: Array,
        rows: Array,
        bounds: Sequence[int],
        evidence: I64,
        unread: Array,
    ) -> None:
        """Fill `evidence` and `unread` of some rows, with one flush of the store."""
        packed = np.zeros(len(context), READING)
        packed["time_us"] = context["event_time_us"]
        packed["level"] = level
        packed["id_hash"][rows] = id_hashes(_ids(context, TRANSACTION, rows))
        machines = _ids(context, self._settings.entity, rows)
        dry = context["dry_run"] > 0
        request = np.searchsorted(bounds, rows, side="right") * dry[rows]
        groups: dict[tuple[int, bytes], list[int]] = {}
        for row, of, machine in zip(
            rows.tolist(), request.tolist(), machines, strict=True
        ):
            groups.setdefault((of, machine), []).append(row)
        # Those that write come first: a dry run sees all earlier writes.
        parts = sorted(groups.items(), key=lambda one: one[0][0])
        orders, commands = [], []
        for (of, machine), own in parts:
            order = in_order(packed, np.array(own))
            orders.append(order)
            commands.append(
                reading_command(
                    hysteresis_key(self._product, self._settings.entity, machine),
                    packed[order].tobytes(),
                    settings=self._settings,
                    dry=of > 0,
                )
            )
        replies = self._flush(commands)
        for order, reply in zip(orders, replies, strict=True):
            if (
                isinstance(reply, bytes)
                and len(reply) == len(order) * EVIDENCE.itemsize
            ):
                evidence[order] = np.frombuffer(reply, np.int64).reshape(-1, 3)
            else:
                unread[order] = True
                if isinstance(reply, Exception):
                    text = describe_error(reply)
                    log.debug("a state of hysteresis was not read: %s", text)

    def _flush(self, commands: Sequence[Any]) -> Sequence[Any]:
        """Run the commands, unless the circuit breaker is open; None for no reply."""
        breaker = self._breaker
        if breaker.state is BreakerState.OPEN and not breaker.until_probe_s():
            breaker.probed(answered=True)  # this batch tries the store
        if not breaker.allows():
            return [None] * len(commands)
        try:
            _, replies = self._store.flush([], extra_commands=commands)
        except StoreError as error:
            if breaker.failed():
                log.warning("hysteresis leaves the store alone for now: %s", error)
            return [None] * len(commands)
        breaker.succeeded()
        return replies


def count_kinds(decisions: AnsweredDecisions) -> I64:
    """Count rows by how they met the state; int64, in the order of ROW_KINDS."""
    kinds = kinds_of(decisions.evidence)
    kinds[(decisions.degraded & _UNREAD) != 0] = len(Kind)
    found: I64 = np.bincount(kinds, minlength=len(ROW_KINDS))
    return found


def skipped_evidence(level: Array) -> I64:
    """Return evidence of rows that do not reach the state; int64 [N, 3]."""
    packed = [
        pack_evidence(Evidence(Kind.SKIPPED, answered=one), level=one)
        for one in Decision
    ]
    found: I64 = np.frombuffer(b"".join(packed), np.int64).reshape(-1, 3)[level]
    return found


def answered(
    decided: PolicyDecisions,
    evidence: I64,
    *,
    settings: Hysteresis,
    unread: Array,
) -> AnsweredDecisions:
    """
    Return decisions after hysteresis, from their evidence.

    Args:
        decided: Decisions of the policy.
        evidence: int64 [N, 3].
        settings: The section of the policy.
        unread: Rows whose state could not be read; bool [N].

    Raises:
        ValueError: The evidence is none.
    """
    decision, codes = decided.decision.copy(), decided.reason_codes.copy()
    degraded = decided.degraded | (unread * _UNREAD)
    for row, (_, given) in enumerate(unpack_evidence(evidence)):
        if given.kind is Kind.SKIPPED:
            continue
        level, code = answer(int(decided.decision[row]), given, settings)
        decision[row] = level
        if code is not Code.NONE:
            own = code.name.encode()
            codes[row] = codes[row] + _SEPARATOR + own if codes[row] else own
        if given.damaged:
            degraded[row] |= _UNREAD
    columns = structs.asdict(decided) | {
        "decision": decision,
        "reason_codes": codes,
        "degraded": degraded,
    }
    return AnsweredDecisions(**columns, evidence=evidence)


def recorded_levels(fields: Mapping[str, I64]) -> npt.NDArray[np.uint8]:
    """Return the raw levels of records with EVIDENCE_FIELDS; uint8 [N]."""
    evidence = np.stack([fields[name] for name in EVIDENCE_FIELDS], axis=1)
    levels = [level for level, _ in unpack_evidence(evidence)]
    return np.array(levels, np.uint8)


def decide_recorded(
    decided: PolicyDecisions,
    fields: Mapping[str, I64],
    *,
    settings: Hysteresis | None,
    degraded: npt.NDArray[np.uint32],
) -> PolicyDecisions:
    """
    Apply hysteresis to past decisions, each on the state that its record has.

    Args:
        decided: What a policy decides of the rows now.
        fields: Columns of their records, with EVIDENCE_FIELDS.
        settings: The section of that policy; None without one.
        degraded: Recorded bits; uint32 [N].

    Returns:
        The decisions; unchanged where the policy or the records have no hysteresis.

    Raises:
        ValueError: The evidence is none.
    """
    if settings is None or not fields.keys() >= set(EVIDENCE_FIELDS):
        return decided
    evidence = np.stack([fields[name] for name in EVIDENCE_FIELDS], axis=1)
    unread = (degraded & _UNREAD) != 0
    return answered(decided, evidence, settings=settings, unread=unread)


def decide_in_sequence(
    decided: PolicyDecisions,
    *,
    settings: Hysteresis,
    machines: Sequence[bytes],
    ids: Sequence[bytes],
    time_us: I64,
) -> AnsweredDecisions:
    """
    Apply hysteresis to a whole history, from empty states on, in the order of time.

    Args:
        decided: What a policy decides of the rows.
        settings: Its section.
        machines: Id of each row's machine.
        ids: Transaction id of each row.
        time_us: Event times.
    """
    packed = np.zeros(len(ids), READING)
    packed["time_us"], packed["level"] = time_us, _sent_levels(decided, settings)
    packed["id_hash"] = id_hashes(ids)
    groups: dict[bytes, list[int]] = {}
    for row, machine in enumerate(machines):
        groups.setdefault(machine, []).append(row)
    evidence = skipped_evidence(decided.decision)
    for own in groups.values():
        order = in_order(packed, np.array(own))
        _, found = apply_readings(None, packed[order].tobytes(), settings)
        evidence[order] = np.frombuffer(found, np.int64).reshape(-1, 3)
    unread = np.zeros(len(ids), np.bool_)
    return answered(decided, evidence, settings=settings, unread=unread)


def _sent_levels(
    decided: PolicyDecisions, settings: Hysteresis
) -> npt.NDArray[np.uint8]:
    """Return the level byte of each row's READING; uint8 [N]."""
    served = (decided.rules & np.uint64(settings.maintenance)) != 0
    found: npt.NDArray[np.uint8] = decided.decision + served * np.uint8(MAINTENANCE)
    return found


def in_order(packed: Array, rows: Array) -> Array:
    """Sort rows by (time, hash of the id)."""
    own = packed[rows]
    place = np.ascontiguousarray(own["id_hash"]).view(">u8")
    order: Array = rows[np.lexsort((place, own["time_us"]))]
    return order


def id_hashes(ids: Sequence[bytes]) -> Array:
    """Hash transaction ids as entity values do: BLAKE2b, 8 bytes; V8 [N]."""
    digests = [hashlib.blake2b(one, digest_size=8).digest() for one in ids]
    return np.frombuffer(b"".join(digests), "V8")


def _ids(context: Array, owner: str, rows: Array) -> list[bytes]:
    """Return the ids of an owner in some rows."""
    slots = context[f"{owner}_id"]
    width, joined = slots.dtype.itemsize, slots.tobytes()
    lengths = context[f"{owner}_id_length"].tolist()
    return [joined[row * width : row * width + lengths[row]] for row in rows.tolist()]

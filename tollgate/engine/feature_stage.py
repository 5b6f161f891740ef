"""The first stage: rows to features and context, over the fallback chain."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate import compiled
from tollgate.engine.row_batches import (
    Batch,
    DryShare,
    Group,
    LookUp,
    dry_spans,
    fingerprints,
    groups,
    mix_fields,
)
from tollgate.features.fields import stacked
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.ranking.history import UserHistory, no_history
from tollgate.schema import (
    CONTEXT_VERSION,
    MAX_ID_BYTES,
    TRANSACTION,
    TRANSACTION_ID,
    Degraded,
    context_dtype,
)
from tollgate.store.fallback.fallback_chain import FallbackChain, Scored
from tollgate.store.stored_decisions import verified_fingerprint
from tollgate.validation import conflict

Array = npt.NDArray[Any]

_MOST = 2**32 - 1
# Match each row of a batch with its stored decision (idempotency).

_UNREAD = np.uint32(Degraded.LOOKUPS_UNREAD)


def match_stored_decisions(
    batch: Batch, groups: Sequence[Group], scored: Sequence[Scored], *, context: Array
) -> Counter[str]:
    """
    Note each row's stored decision in its context, or its conflict in the errors.

    Args:
        batch: The batch; conflicts are added to its `errors`.
        groups: Its good rows.
        scored: The results for each group.
        context: Of the batch, with its fingerprints; changed.

    Returns:
        Number of stored decisions by kind: same, conflict, corrupt.
    """
    counts: Counter[str] = Counter()
    ids = batch.ids[TRANSACTION_ID]
    for group, one in zip(groups, scored, strict=True):
        if any(one.lookups.earlier):
            for row, value in zip(
                group.rows.tolist(), one.lookups.earlier, strict=True
            ):
                if value:
                    counts[_match(batch, row, value, context=context)] += 1
        own = group.purchases.transaction_id
        if not group.dry and len(set(own)) < len(own):
            for row in _conflicting_duplicates(group, context["fingerprint"]):
                batch.errors.setdefault(row, conflict(ids[row]))
                counts["conflict"] += 1
    return counts


def _match(batch: Batch, row: int, value: bytes, *, context: Array) -> str:
    fingerprint = verified_fingerprint(value)
    if fingerprint is None:
        context["degraded"][row] |= _UNREAD
        return "corrupt"
    if fingerprint != context["fingerprint"][row]:
        batch.errors.setdefault(row, conflict(batch.ids[TRANSACTION_ID][row]))
        return "conflict"
    context["earlier_length"][row] = len(value)
    context["earlier"][row] = value
    return "same"


def _conflicting_duplicates(group: Group, fingerprints: Array) -> list[int]:
    """List rows that share their id with a row before them but differ in content."""
    ids = group.purchases.transaction_id
    first: dict[bytes, int] = {}
    return [
        row
        for row, one in zip(group.rows.tolist(), ids, strict=True)
        if fingerprints[row] != fingerprints[first.setdefault(one, row)]
    ]


class FeatureStage:
    """
    Fill features and contexts of batches.

    Args:
        spec: Feature spec of the product.
        chain: The fallback chain that batches read.
        share: Shares look-ups among identical dry runs.
        observe: Wraps the look-up of a batch, to measure it.

    Attributes:
        dtype: Of a context; tollgate.schema.context_dtype.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        chain: FallbackChain,
        *,
        share: DryShare,
        observe: Callable[[LookUp], LookUp] | None = None,
    ) -> None:
        self._spec = spec
        self._chain = chain
        self._share = share
        self._observe = observe
        self.dtype = context_dtype(self._spec.entity_names, self._spec.field_names)
        owners = (TRANSACTION, *self._spec.entity_names)
        self._id_fields = [(f"{one}_id_length", f"{one}_id") for one in owners]
        offsets = {name: at for name, (_, at, *_) in (self.dtype.fields or {}).items()}
        self._places = tuple(
            offsets[name]
            for name in itertools.chain(
                ("event_time_us", "cents", "fingerprint"), *self._id_fields
            )
        )
        blank = np.zeros(1, self.dtype)
        blank["version"] = CONTEXT_VERSION
        blank["spec_hash"] = self._spec.spec_hash
        # Bytes are copied faster than the fields of a structured array.
        self._blank = blank.tobytes()

    def score(
        self, batch: Batch, *, arrival_us: int, chain: FallbackChain | None = None
    ) -> tuple[Array, Array]:
        """
        Fill `features` float32 [N, F] and `context` [N] for the whole batch.

        Args:
            batch: Its rows; conflicts that the store reports join its errors.
            arrival_us: Time at which work on it started, on the monotonic clock.
            chain: The fallback chain to read; the stage's own if None.
        """
        return self._score(batch, arrival_us=arrival_us, chain=chain, history=None)

    def score_with_history(
        self, batch: Batch, *, arrival_us: int, chain: FallbackChain | None = None
    ) -> tuple[Array, Array, UserHistory]:
        """
        Fill features and context as `score` does, and read the newest events.

        Returns:
            Features, context, and the histories of the whole batch: those of bad rows
            are empty, and not known.

        Raises:
            ValueError: The spec has no `history`.
        """
        if self._spec.history is None:
            raise ValueError(f"the features of {self._spec.product} have no history")
        history = no_history(self._spec.history, len(batch.cents))
        features, context = self._score(
            batch, arrival_us=arrival_us, chain=chain, history=history
        )
        if batch.errors:  # rows with a conflict had been read
            bad = np.array([*batch.errors])
            history.fill(bad, no_history(self._spec.history, len(bad)))
        return features, context, history

    def _score(
        self,
        batch: Batch,
        *,
        arrival_us: int,
        chain: FallbackChain | None,
        history: UserHistory | None,
    ) -> tuple[Array, Array]:
        """Fill features and context, and the history if there is one to fill."""
        rows = len(batch.cents)
        features = np.zeros((rows, len(self._spec.features)), np.float32)
        context = np.frombuffer(bytearray(self._blank * rows), self.dtype)
        context["arrival_us"] = arrival_us
        if self._spec.fields:
            context["degraded"] = batch.degraded
        unfilled = True

        def fill_context() -> None:
            """Run while the store works, or else here: once."""
            nonlocal unfilled
            if unfilled:
                self._fill_context(batch, context)
                unfilled = False

        if any(batch.dry):  # sharing finds identical rows by their fingerprints
            fill_context()
        found = groups(batch)
        if found:
            scored = self._read(
                found, features, context, on_wait=fill_context, chain=chain
            )
        fill_context()
        if history is not None and found:
            for group, one in zip(found, scored, strict=True):
                if one.history is not None:
                    history.fill(group.rows, one.history)
                    for row, entry in zip(
                        group.rows.tolist(), one.lookups.prepared, strict=True
                    ):
                        history.prepared[row] = entry
        if found:
            counts = (chain or self._chain).counts.earlier
            counts.update(match_stored_decisions(batch, found, scored, context=context))
        for row, text in batch.errors.items():
            encoded = text.encode()
            context["bad"][row] = 1
            context["error_length"][row] = len(encoded)
            context["error"][row] = encoded
        worked_us = time.monotonic_ns() // 1000 - arrival_us
        context["features_us"] = min(worked_us, _MOST)
        return features, context

    def _fill_context(self, batch: Batch, context: Array) -> None:
        """Write the values of the rows themselves into the context."""
        columns = list(batch.ids.values())
        if compiled.events is None or not compiled.events.fill_rows(
            context.view(np.uint8),
            columns,
            batch.time_us,
            batch.cents,
            mix_fields(batch.fields).view(np.int64) if batch.fields else None,
            max_id_bytes=MAX_ID_BYTES,
            places=self._places,
        ):
            context["event_time_us"] = batch.time_us
            context["cents"] = batch.cents
            self._fill_ids(batch, context)
            context["fingerprint"] = fingerprints(
                columns,
                cents=batch.cents,
                time_us=batch.time_us,
                fields=batch.fields,
            )
        if self._spec.fields:
            self._fill_fields(batch, context)
        if any(batch.dry):
            for span in dry_spans(batch):
                context["dry_run"][span] = 1

    def _fill_ids(self, batch: Batch, context: Array) -> None:
        columns = list(batch.ids.values())
        flat = list(itertools.chain.from_iterable(columns))
        lengths = np.fromiter(map(len, flat), np.int64, len(flat))
        if batch.errors:  # an id that is too long is one
            lengths = np.minimum(lengths, MAX_ID_BYTES)
        packed = np.array(flat, f"S{MAX_ID_BYTES}").view(f"V{MAX_ID_BYTES}")
        for (length_field, id_field), own, slots in zip(
            self._id_fields,
            lengths.reshape(len(columns), -1),
            packed.reshape(len(columns), -1),
            strict=True,
        ):
            context[length_field] = own
            context[id_field] = slots

    def _fill_fields(self, batch: Batch, context: Array) -> None:
        """Write all declared fields at once: they are a row's last bytes."""
        names, rows = self._spec.field_names, len(context)
        first = self.dtype.itemsize - 8 * len(names)
        packed = context.view(np.uint8).reshape(rows, -1)[:, first:].view("<i8")
        packed[:] = stacked(batch.fields, names, rows).T

    def _read(
        self,
        found: list[Group],
        features: Array,
        context: Array,
        *,
        on_wait: Callable[[], None],
        chain: FallbackChain | None,
    ) -> list[Scored]:
        """Get the vectors of the good rows, in one round trip at most."""
        look_up: LookUp = partial(self._look_up, chain or self._chain, on_wait=on_wait)
        if chain is not None:
            scored = look_up(found)
        else:
            if self._observe is not None:
                look_up = self._observe(look_up)
            prints = context["fingerprint"]
            scored = self._share.score(found, fingerprints=prints, look_up=look_up)
        for group, one in zip(found, scored, strict=True):
            # Writing a slice is several times faster than writing selected rows.
            whole = len(group.rows) == len(features)
            rows = slice(None) if whole else group.rows
            features[rows] = one.features
            context["applied"][rows] = one.applied
            # The others are zero, as in a blank row, when nothing is wrong or listed.
            if np.count_nonzero(one.degraded):
                context["degraded"][rows] |= one.degraded
            if np.count_nonzero(one.age_us):
                context["age_ms"][rows] = np.minimum(one.age_us // 1000, _MOST)
            if np.count_nonzero(one.lookups.list_hits):
                context["list_hits"][rows] = one.lookups.list_hits
        return scored

    def _look_up(
        self,
        chain: FallbackChain,
        groups: Sequence[Group],
        *,
        on_wait: Callable[[], None],
    ) -> list[Scored]:
        return chain.score(
            [group.purchases for group in groups],
            write=[not group.dry for group in groups],
            on_wait=on_wait,
        )

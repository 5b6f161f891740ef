"""Decide a request in a worker, from the parsed body to the answer."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtests.baseline import environment
from loadtests.baseline.lean.link import Link
from loadtests.baseline.lean.rows import (
    Array,
    Ids,
    answers_of,
    context_of,
    note_earlier,
)
from loadtests.baseline.service import Answers, BadRows
from tollgate.engine.decision_stage import row_marks
from tollgate.engine.onnx_session import OnnxSession
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.journal.journal_opening import open_writer
from tollgate.journal.journal_rows import Heading
from tollgate.journal.stored_decision_commands import StoreCommands
from tollgate.policy import RowFacts, decide
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.releases.rendering import lookup_lists
from tollgate.repository.releases.served_versions import load_policy_of
from tollgate.schema import FEATURES, PROBABILITIES, TRANSACTION_ID, context_dtype
from tollgate.steps.step_journal import StepJournal
from tollgate.store.lookups import Lookups
from tollgate.store.online_features import OnlineFeatures, Packed
from tollgate.store.redis.redis_store import Command, Mode, NoStore, call_command
from tollgate.store.store_events import Purchases
from tollgate.validation import check_rows


class Purchase(msgspec.Struct, gc=False):
    """A purchase, as a request contains it."""

    transaction_id: str
    customer_id: str
    terminal_id: str
    amount: float
    event_time: int


class Work:
    """One worker's connections, model, policy and journal."""

    def __init__(self) -> None:
        self._link = Link(environment.store_url())
        self._scorer = Scorer(
            environment.repository(),
            store_url=environment.store_url(),
            folder=environment.folder(),
        )

    async def begin(self) -> None:
        """Prepare the store."""
        await self._link.prepare()

    async def end(self) -> None:
        """Write all records, and close the connections."""
        self._scorer.close()
        await self._link.close()

    async def decide(self, purchases: list[Purchase]) -> Answers:
        """
        Decide 1 to 32 rows.

        Raises:
            BadRows: Any of them breaks a rule; none is decided.
            RedisError: The store has no answer.
        """
        prepared = self._scorer.ask(
            {
                TRANSACTION_ID: [one.transaction_id.encode() for one in purchases],
                "customer_id": [one.customer_id.encode() for one in purchases],
                "terminal_id": [one.terminal_id.encode() for one in purchases],
            },
            amount=[one.amount for one in purchases],
            time_us=[one.event_time for one in purchases],
        )
        replies = await self._link.ask(prepared.commands)
        features = self._scorer.features(prepared, replies)
        probabilities = self._scorer.probabilities(features)
        return self._scorer.decide(prepared, features, probabilities=probabilities)


# Decide a request with our own library, before and after one call of the store.
#
# One process does the work of the ensemble's steps: the same checks, windows, look-ups,
# policy and journal. It has no Triton, and it has no fallback chain as the feature step
# has for a store in trouble.


_PRODUCT = "fraud"


class ScoringBatch(msgspec.Struct, frozen=True, eq=False):
    """
    A request before the call of the store.

    Attributes:
        packed: Its purchases, as the store takes them.
        ids: Id columns by field.
        context: One journal record per row, with the fields known so far.
        commands: Commands for the store.
    """

    packed: Packed
    ids: Ids
    context: Array
    commands: list[Command]


class Scorer:
    """
    Decides requests for one worker.

    Args:
        repository: The model repository; the scorer uses its release.
        store_url: Address of the store and of the journal's stream.
        folder: Spool for records that the stream does not take.
    """

    def __init__(self, repository: Path, *, store_url: str, folder: Path) -> None:
        release = read_release(repository, product=_PRODUCT)
        home = {
            step: repository / step / str(version)
            for step, version in release.versions.items()
        }
        self._spec = load_spec(home["fraud_features"] / SPEC_FILE)
        self._policy = load_policy_of(home["fraud_decision"], self._spec)
        self._lookups = Lookups(self._spec, lookup_lists(self._policy, _PRODUCT))
        # It only packs and parses: the worker makes the call.
        self._online = OnlineFeatures(self._spec, NoStore())
        self._session = OnnxSession(
            home["fraud_model"] / MODEL_FILE, intra_op_threads=1
        )
        heading = Heading(
            product=_PRODUCT,
            release=release.name,
            spec_hash=self._spec.spec_hash,
            entities=self._spec.entity_names,
            fields=(),
        )
        writer = open_writer(
            store_url,
            heading,
            folder=str(folder / f"journal-{os.getpid()}"),
            extra_commands=StoreCommands(window_s=self._policy.idempotency_s),
        )
        self._journal = StepJournal(writer)
        self._dtype = context_dtype(self._spec.entity_names)

    def close(self) -> None:
        """Write the records of all decisions."""
        self._journal.close()

    def ask(
        self, ids: Ids, *, amount: Sequence[float], time_us: Sequence[int]
    ) -> ScoringBatch:
        """
        Check rows, and prepare the store commands for them.

        Raises:
            BadRows: Any of them breaks a rule.
        """
        arrival_us = time.monotonic_ns() // 1000
        times = np.array(time_us, np.int64)
        checked = check_rows(
            ids, amount=np.array(amount), time_us=times, now_us=time.time_ns() // 1000
        )
        if checked.errors:
            raise BadRows(checked.errors)
        transaction, *entities = ids.values()
        purchases = Purchases(
            transaction_id=transaction,
            entity_id=entities,
            event_time_us=times,
            cents=checked.cents,
        )
        packed = self._online.pack(purchases)
        return ScoringBatch(
            packed=packed,
            ids=ids,
            context=context_of(
                ids,
                purchases,
                spec=self._spec,
                dtype=self._dtype,
                arrival_us=arrival_us,
            ),
            commands=[
                call_command(packed.call, Mode.WRITE),
                *self._lookups.commands([purchases]),
            ],
        )

    def features(self, prepared: ScoringBatch, replies: Sequence[Any]) -> Array:
        """
        Compute features from the store's replies; note the other replies in the
        context.

        Returns:
            float32 [N, F].

        Raises:
            BadRows: A row has the id of another purchase.
        """
        context = prepared.context
        vectors = self._online.read(prepared.packed, (replies[0][:-1], replies[0][-1]))
        (looked,) = self._lookups.read([prepared.packed.purchases], replies[1:])
        context["degraded"] = vectors.degraded | looked.degraded
        context["applied"] = vectors.applied
        context["list_hits"] = looked.list_hits
        if any(looked.earlier):
            note_earlier(context, looked.earlier, ids=prepared.ids)
        worked_us = time.monotonic_ns() // 1000 - int(context["arrival_us"][0])
        context["features_us"] = worked_us
        return vectors.features.astype(np.float32)

    def probabilities(self, features: Array) -> Array:
        """Run the model; return float32 [N, 2]."""
        return self._session.run([PROBABILITIES], {FEATURES: features})[0]

    def decide(
        self, prepared: ScoringBatch, features: Array, *, probabilities: Array
    ) -> Answers:
        """Apply the policy, and pass the decisions to the journal."""
        context = prepared.context
        began_us = time.monotonic_ns() // 1000
        facts = RowFacts(
            probabilities=probabilities,
            features=features,
            cents=context["cents"],
            degraded=context["degraded"],
            event_time_us=context["event_time_us"],
            list_hits=context["list_hits"],
            fields={},
        )
        decided = decide(facts, policy=self._policy)
        self._journal.record(
            context,
            decided,
            features=features,
            probabilities=probabilities,
            began_us=began_us,
            marks=row_marks(context, spec_hash=self._spec.spec_hash),
        )
        return answers_of(decided, context)

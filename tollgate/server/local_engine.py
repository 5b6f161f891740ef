"""Decide rows of a released product in this process, without a server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.engine.decision_stage import DecisionBatch, DecisionStage
from tollgate.engine.feature_stage import FeatureStage
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.row_batches import Batch, DryShare, declared_fields
from tollgate.engine.scoring_model import ScoringModel
from tollgate.features.assemble import exact_features
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import Policy
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release, verify_active
from tollgate.repository.releases.rendering import lookup_lists
from tollgate.repository.releases.served_versions import load_policy_of, released_spec
from tollgate.schema import AMOUNT, EVENT_TIME, MAX_BATCH_ROWS
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.store_opening import StoreSettings, open_fallback_chain
from tollgate.validation import check_rows

_DEADLINE_S = 1.0  # of a batch for the store: no payment waits for it

Array = npt.NDArray[Any]
Columns = Mapping[str, Sequence[Any] | Array]


class Engine:
    """
    Decide rows with the stages that the steps of a server run.

    It writes no journal, so no decision is stored for its transaction id.

    Args:
        spec: Feature spec of the release.
        policy: Policy of the release.
        model: Model of the release.
        release: Name of the release.
        chain: The store, or the defaults of a product without one; closed with this
            object.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        policy: Policy,
        model: ScoringModel,
        *,
        release: str,
        chain: FallbackChain,
    ) -> None:
        self._spec = spec
        self._model = model
        self._chain = chain
        self._features = FeatureStage(spec, chain, share=DryShare(0.0))
        self._decision = DecisionStage(
            policy, release=release, spec_hash=spec.spec_hash, fields=spec.field_names
        )

    def close(self) -> None:
        """Close the store."""
        self._chain.close()

    def decide(
        self, columns: Columns, *, dry_run: bool = False, now_us: int | None = None
    ) -> dict[str, Array]:
        """
        Decide N rows, in batches of at most 32.

        Args:
            columns: Inputs of the product's requests by name, N values each: ids and
                words as text or bytes, numbers, and event times in µs since the epoch.
                A declared field may be left out.
            dry_run: True to read the store and change nothing in it.
            now_us: Time of the decisions, µs since the epoch; None for now.

        Returns:
            Outputs of the product by name, N values each; texts are bytes.

        Raises:
            KeyError: A column that the product requires is missing.
        """
        rows = len(columns[EVENT_TIME])
        parts = [
            self._decide(
                {
                    name: column[at : at + MAX_BATCH_ROWS]
                    for name, column in columns.items()
                },
                dry_run=dry_run,
                now_us=time.time_ns() // 1000 if now_us is None else now_us,
            )
            for at in range(0, max(rows, 1), MAX_BATCH_ROWS)
        ]
        return {
            name: np.concatenate([part[name] for part in parts])[:, 0]
            for name in parts[0]
        }

    def _decide(
        self, columns: Columns, *, dry_run: bool, now_us: int
    ) -> dict[str, Array]:
        arrival_us = time.monotonic_ns() // 1000
        batch = self._checked(columns, dry_run=dry_run, now_us=now_us)
        features, context = self._features.score(batch, arrival_us=arrival_us)
        vectors = features
        if self._model.exact:
            vectors = exact_features(
                self._spec, features, cents=batch.cents, fields=batch.fields
            )
        scored = DecisionBatch(
            context=context,
            features=features,
            probabilities=self._model.probabilities(vectors),
            chosen=None,
            bounds=batch.bounds,
            began_us=time.monotonic_ns() // 1000,
        )
        decided = self._decision.decide(scored)
        marks = self._decision.marks(context)
        return self._decision.columns(scored, decided, marks=marks)

    def _checked(self, columns: Columns, *, dry_run: bool, now_us: int) -> Batch:
        """Check every row."""
        spec = self._spec
        ids = {name: [_bytes(one) for one in columns[name]] for name in spec.id_names}
        time_us = np.asarray(columns[EVENT_TIME], np.int64)
        amount = np.asarray(columns[AMOUNT], np.float64) if spec.amount else None
        checked = check_rows(ids, amount=amount, time_us=time_us, now_us=now_us)
        fields: Mapping[str, Array] = {}
        degraded: Array | int = 0
        if spec.fields:
            sent = {
                one.name: _field(columns[one.name], one.type)
                for one in spec.fields
                if one.name in columns
            }
            fields, degraded = declared_fields(
                spec, sent, rows=len(time_us), errors=checked.errors
            )
        return Batch(
            ids=ids,
            cents=checked.cents,
            time_us=time_us,
            errors=checked.errors,
            bounds=[0, len(time_us)],
            dry=[dry_run],
            degraded=degraded,
            fields=fields,
        )


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _field(column: Sequence[Any] | Array, kind: str) -> Array:
    if kind == "number":
        return np.asarray(column, np.float64)
    words = np.empty(len(column), np.object_)
    words[:] = [_bytes(one) for one in column]
    return words


@contextmanager
def open_engine(
    repository: Path, *, product: str, store_url: str = ""
) -> Iterator[Engine]:
    """
    Open the release of a product for notebooks, batch scoring and tests.

    Args:
        repository: The model repository.
        product: The ensemble.
        store_url: Online store to read and write; without one, features that need a
            history have their declared defaults, and rows are marked as degraded.

    Raises:
        RepositoryError: The release cannot be read, or its files do not fit.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    release = read_release(repository, product=product)
    verify_active(repository, release)
    models = read_product(repository, product)
    spec = released_spec(release, models)
    version = {
        step: repository / step / str(number)
        for step, number in release.versions.items()
    }
    policy = load_policy_of(version[models.decision_step], spec)
    session = OnnxSession(version[models.model_step] / MODEL_FILE, intra_op_threads=1)
    chain = open_fallback_chain(
        spec,
        store_url,
        settings=StoreSettings(deadline_s=_DEADLINE_S),
        lists=lookup_lists(policy, product),
    )
    engine = Engine(
        spec, policy, ScoringModel(session), release=release.name, chain=chain
    )
    try:
        yield engine
    finally:
        engine.close()

"""Open the engine of a released product in this process, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tollgate.engine.engine import Engine
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.scoring_model import ScoringModel
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release, verify_active
from tollgate.repository.releases.rendering import lookup_lists
from tollgate.repository.releases.served_versions import load_policy_of, released_spec
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

_DEADLINE_S = 1.0  # of a batch for the store: no payment waits for it


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

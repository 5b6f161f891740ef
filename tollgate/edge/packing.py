"""Pack the active release of a product into a bundle for devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.edge.bundle import Manifest, Variant, write_bundle
from tollgate.errors import InputError, RepositoryError, os_errors
from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import SPEC_FILE
from tollgate.policy import POLICY_FILE
from tollgate.repository.models.model_files import MODEL_FILE, require_whole
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import (
    RELEASE_FILE,
    read_release,
    verify_active,
)
from tollgate.repository.releases.release_history import TRIAL_ACTIONS, read_history
from tollgate.repository.releases.served_versions import load_policy_of, released_spec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def pack(
    repository: Path, *, product: str, key: Ed25519PrivateKey, out: Path
) -> Manifest:
    """
    Write the bundle of a product's active release.

    Raises:
        RepositoryError: The release cannot be read, or its files do not fit it.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
        InputError: A device cannot decide this product, or the bundle cannot be
            written.
    """
    release = read_release(repository, product=product)
    verify_active(repository, release)
    models = read_product(repository, product)
    if models.ranks:
        raise InputError(product, "ranks items: only a server does that")
    folder = {step: f"{step}/{version}" for step, version in release.versions.items()}
    features = f"{folder[models.features_step]}/{SPEC_FILE}"
    policy = f"{folder[models.decision_step]}/{POLICY_FILE}"
    model = f"{folder[models.model_step]}/{MODEL_FILE}"
    spec = released_spec(release, models)
    load_policy_of((repository / policy).parent, spec)
    require_whole(repository / model)
    names = [f"{product}/{RELEASE_FILE}", features, policy, model]
    if spec.hook is not None:
        names.append(f"{folder[models.features_step]}/{HOOK_FILE}")
    manifest = Manifest(
        product=product,
        release=release.name,
        sequence=_sequence(repository, product),
        spec_hash=release.spec_hash,
        features=features,
        policy=policy,
        variants=(Variant(name="full", model=model),),
        files={},
    )
    files = {name: _read(repository / name) for name in names}
    return write_bundle(out, manifest, files, key=key)


def _sequence(repository: Path, product: str) -> int:
    """Count the changes that decided which release answers; a rollback is one, too."""
    entries = read_history(repository, product)
    return sum(entry.action not in TRIAL_ACTIONS for entry in entries)


def _read(path: Path) -> bytes:
    with os_errors(RepositoryError, path, "cannot be read"):
        return path.read_bytes()

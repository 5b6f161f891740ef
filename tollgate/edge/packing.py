"""Pack the active release of a product into a bundle for devices."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.edge.bundle import Manifest, Variant, write_bundle
from tollgate.errors import InputError, RepositoryError, os_errors
from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import SPEC_FILE
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import POLICY_FILE
from tollgate.repository.models.artifact_file import Artifact
from tollgate.repository.models.model_files import MODEL_FILE, require_whole
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import (
    RELEASE_FILE,
    read_release,
    spec_hash_text,
    verify_active,
)
from tollgate.repository.releases.release_history import TRIAL_ACTIONS, read_history
from tollgate.repository.releases.served_versions import load_policy_of, released_spec
from tollgate.schema import ARTIFACT_FILE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


PRUNED_FOLDER = "pruned"  # of a bundle


def pack(
    repository: Path,
    *,
    product: str,
    key: Ed25519PrivateKey,
    out: Path,
    pruned: Path | None = None,
    rules: bool = False,
) -> Manifest:
    """
    Write the bundle of a product's active release.

    Args:
        pruned: Folder that `tollgate convert --prune` wrote, for a second variant; None
            for none.
        rules: True for a variant that decides without a model.

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
        raise InputError(product, "ranks items: a device does not")
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
    files = {name: _read(repository / name) for name in names}
    variants = [Variant(name="full", model=model)]
    if pruned is not None:
        variant, content = _read_pruned(pruned, spec)
        variants.append(variant)
        files[variant.model] = content
    if rules:
        variants.append(Variant(name="rules", model=""))
    manifest = Manifest(
        product=product,
        release=release.name,
        sequence=_sequence(repository, product),
        spec_hash=release.spec_hash,
        features=features,
        policy=policy,
        variants=tuple(variants),
        files={},
    )
    return write_bundle(out, manifest, files, key=key)


def _sequence(repository: Path, product: str) -> int:
    """Count the changes that decided which release answers; a rollback is one, too."""
    entries = read_history(repository, product)
    return sum(entry.action not in TRIAL_ACTIONS for entry in entries)


def _read_pruned(folder: Path, spec: FeatureSpec) -> tuple[Variant, bytes]:
    """
    Read a smaller model, and what it costs.

    Raises:
        RepositoryError: It was made for other features, its loss was not measured, or a
            file was changed.
    """
    path = folder / ARTIFACT_FILE
    try:
        artifact = msgspec.json.decode(_read(path), type=Artifact)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RepositoryError(path, str(error)) from error
    if artifact.spec_hash != spec_hash_text(spec.spec_hash):
        problem = f"is {artifact.spec_hash}, the release has "
        problem += spec_hash_text(spec.spec_hash)
        raise RepositoryError(path, problem, where="spec_hash")
    trades = [one for one in artifact.trades if one.kind == "prune"]
    if not trades:
        problem = "has no pruning with its measured loss: prune it when it is converted"
        raise RepositoryError(path, problem, where="trades")
    content = _read(folder / MODEL_FILE)
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise RepositoryError(folder / MODEL_FILE, f"is not the model of {path}")
    require_whole(folder / MODEL_FILE)
    (trade,) = trades
    variant = Variant(
        name="pruned",
        model=f"{PRUNED_FOLDER}/{MODEL_FILE}",
        trees=artifact.source.trees if artifact.source else 0,
        compared=trade.rows,
        differing=trade.flips,
        us_per_row=trade.after.us_per_row.get(1, 0.0),
    )
    return variant, content


def _read(path: Path) -> bytes:
    with os_errors(RepositoryError, path, "cannot be read"):
        return path.read_bytes()

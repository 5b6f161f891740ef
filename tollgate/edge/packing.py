"""Pack the active release of a product into a bundle for devices."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.edge.bundle import Manifest, Variant, VariantName, write_bundle
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


# Name of the variant, and of its folder in the bundle, by the way a model was made.
_SMALLER: dict[str, VariantName] = {
    "prune": "pruned",
    "distill": "distilled",
    "quantize": "quantized",
}


def pack(
    repository: Path,
    *,
    product: str,
    key: Ed25519PrivateKey,
    out: Path,
    smaller: Path | None = None,
    rules: bool = False,
) -> Manifest:
    """
    Write the bundle of a product's active release.

    Args:
        smaller: Folder that `tollgate convert` wrote with --prune, --distill or
            --quantize, for a second variant; None for none.
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
    if smaller is not None:
        variant, content = _read_smaller(smaller, spec)
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


def _read_smaller(folder: Path, spec: FeatureSpec) -> tuple[Variant, bytes]:
    """
    Read a smaller model, and what it costs.

    Raises:
        RepositoryError: It was made for other features, its loss was not measured, it
            is slower than the first, or a file was changed.
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
    if not artifact.trades:
        problem = "has no smaller model with its measured loss: prune, distill or "
        problem += "quantize it when it is converted"
        raise RepositoryError(path, problem, where="trades")
    trade, *others = artifact.trades
    if others:
        problem = "was made smaller more than once: its loss against the full model is "
        problem += "not known"
        raise RepositoryError(path, problem, where="trades")
    was_us, is_us = (one.us_per_row.get(1, 0.0) for one in (trade.before, trade.after))
    if is_us > was_us:
        problem = f"takes {is_us:.3g} µs for a row, the larger model {was_us:.3g}: "
        problem += "a device would not get faster by it"
        raise RepositoryError(path, problem, where="trades")
    content = _read(folder / MODEL_FILE)
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise RepositoryError(folder / MODEL_FILE, f"is not the model of {path}")
    require_whole(folder / MODEL_FILE)
    name = _SMALLER[trade.kind]
    variant = Variant(
        name=name,
        model=f"{name}/{MODEL_FILE}",
        trees=artifact.source.trees if artifact.source else 0,
        compared=trade.rows,
        differing=trade.flips,
        us_per_row=is_us,
    )
    return variant, content


def _read(path: Path) -> bytes:
    with os_errors(RepositoryError, path, "cannot be read"):
        return path.read_bytes()

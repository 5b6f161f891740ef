"""
Define the release: which version of each step answers, with the hashes of its files.

A release is one small file next to the ensemble's configuration, replaced as a whole.
It is the desired state: every server reconciles to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tollgate.errors import RepositoryError, os_errors
from tollgate.repository.atomic import replace_file
from tollgate.repository.configs import CONFIG_FILE
from tollgate.repository.field_types import Name, Sha256, SpecHash, UtcTime
from tollgate.repository.hashes import SHORT_DIGITS, hash_version
from tollgate.repository.product_models import Product

RELEASE_FILE = "release.json"

Version = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]
Versions = dict[str, Version]


class Challenger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    A release on trial next to the one that answers.

    Attributes:
        release: Its name, which it keeps when it is promoted.
        mode: "shadow": scored outside of the request path, from the journal. "canary":
            answers a share of the customers.
        percent: That share, 0 to 100; a customer in it stays in it when it grows.
        seed: Seed of the choice of customers.
        interleaved: True for a canary that answers no customer: in that share of the
            requests, champion and challenger pick the items of the list in turns.
        time: Start of the trial, RFC 3339 in UTC.
    """

    release: Name
    versions: Versions
    spec_hash: SpecHash
    mode: Literal["shadow", "canary"]
    percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    interleaved: bool = False
    actor: str
    reason: str
    time: UtcTime


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    One combination of features, model and policy.

    Attributes:
        name: Its name in answers, for example fraud-1.
        hashes: SHA-256 of every file of every version that is to be loaded, by its path
            in the repository.
        spec_hash: Hash of the feature spec, 16 hexadecimal digits.
        previous: Versions of the release before it, which stay loaded for a rollback.
        time: Time when it was made, RFC 3339 in UTC.
    """

    name: Name
    product: Name
    versions: Versions
    hashes: dict[str, Sha256]
    spec_hash: SpecHash
    previous: Versions | None = None
    challenger: Challenger | None = None
    actor: str
    reason: str
    time: UtcTime

    def loaded_versions(self, step: str) -> list[int]:
        """List the versions of a step that stay loaded, ascending."""
        trial = self.challenger.versions if self.challenger else {}
        sets = (self.versions, self.previous or {}, trial)
        return sorted({versions[step] for versions in sets if step in versions})

    def hashes_of(self, versions: Mapping[str, int]) -> dict[str, str]:
        """Pick the hashes of the files of some versions."""
        folders = tuple(f"{step}/{version}/" for step, version in versions.items())
        return {
            name: digest
            for name, digest in self.hashes.items()
            if name.startswith(folders)
        }


def spec_hash_text(spec_hash: int) -> str:
    """Print the hash of a feature spec (0 … 2**64 - 1) as 16 hexadecimal digits."""
    return f"{spec_hash:016x}"


VARIANTS = (
    "full",
    "pruned",
    "distilled",
    "quantized",
    "rules",
)  # of a release on a device


def variant_release(release: str, variant: str) -> str:
    """Return the name of a release in answers and records of a device's variant."""
    return release if variant == VARIANTS[0] else f"{release}.{variant}"


def release_of_variant(name: str) -> str:
    """Return the release of a name that `variant_release` made."""
    release, _, variant = name.rpartition(".")
    return release if release and variant in VARIANTS[1:] else name


def release_path(repository: Path, product: str) -> Path:
    """Return the path of a product's release.json."""
    return repository / product / RELEASE_FILE


def read_release(repository: Path, *, product: str) -> Release:
    """
    Read the release of a product.

    Raises:
        RepositoryError: The file is missing, is not JSON of a release, or belongs to
            another product.
    """
    path = release_path(repository, product)
    with os_errors(RepositoryError, path, "cannot be read"):
        content = path.read_bytes()
    return decode_release(content, product=product, source=path)


def product_names(repository: Path) -> list[str]:
    """List the products of a repository: folders with a release, and ensembles."""
    released = {one.parent.name for one in repository.glob(f"*/{RELEASE_FILE}")}
    ensembles = {
        one.parent.name
        for one in repository.glob(f"*/{CONFIG_FILE}")
        if one.is_file() and b"ensemble_scheduling" in one.read_bytes()
    }
    return sorted(released | ensembles)


def find_current(repository: Path, *, product: str) -> Release | None:
    """
    Read the release of a product; None if it has none yet.

    Raises:
        RepositoryError: The file cannot be read.
    """
    if not release_path(repository, product).exists():
        return None
    return read_release(repository, product=product)


def decode_release(content: bytes, *, product: str, source: object) -> Release:
    """
    Decode the release of a product.

    Raises:
        RepositoryError: It is not JSON of a release, or belongs to another product.
    """
    try:
        release = msgspec.json.decode(content, type=Release)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RepositoryError(source, _decode_problem(exc)) from exc
    if release.product != product:
        problem = f'is "{release.product}" but the ensemble is "{product}"'
        raise RepositoryError(source, problem, where="product")
    return release


def _decode_problem(exc: Exception) -> str:
    """Rewrite msgspec's message with the field instead of a JSON path."""
    return str(exc).replace(" - at `$.", " - at `").replace(" - at `$`", "")


def release_content(release: Release) -> bytes:
    """Return the bytes to write as release.json."""
    return msgspec.json.format(msgspec.json.encode(release), indent=2) + b"\n"


def write_release(repository: Path, release: Release) -> Path:
    """
    Replace the release of a product; readers see the old one or the new one.

    Raises:
        RepositoryError: A field has a value that no reader accepts, or the file cannot
            be written; the old release is untouched.
    """
    path = release_path(repository, release.product)
    content = release_content(release)
    try:
        msgspec.json.decode(content, type=Release)  # readers must accept it
        replace_file(path, content)
    except msgspec.DecodeError as exc:
        raise RepositoryError(path, _decode_problem(exc)) from exc
    except OSError as exc:
        raise RepositoryError(path, f"cannot be written: {exc.strerror}") from exc
    return path


def verify_release(repository: Path, release: Release) -> None:
    """
    Check that the files to be loaded have the hashes in the release.

    This covers the versions of the active, the previous and the challenger release.

    Raises:
        RepositoryError: A version is missing, a file is missing, changed or extra.
    """
    pairs = [
        (step, version)
        for step in release.versions
        for version in release.loaded_versions(step)
    ]
    _verify(repository, release, pairs=pairs, named=release.hashes)


def verify_active(repository: Path, release: Release) -> None:
    """
    Check the files of the active versions against the release; ignore the others.

    Raises:
        RepositoryError: A version is missing, a file is missing, changed or extra.
    """
    _verify(
        repository,
        release,
        pairs=release.versions.items(),
        named=release.hashes_of(release.versions),
    )


def _verify(
    repository: Path,
    release: Release,
    *,
    pairs: Iterable[tuple[str, int]],
    named: Mapping[str, str],
) -> None:
    """Compare the files of versions with the hashes named for them."""
    path = release_path(repository, release.product)
    actual: dict[str, str] = {}
    for step, version in pairs:
        if not (repository / step / str(version)).is_dir():
            problem = f"version {version} is not in the repository"
            raise RepositoryError(path, problem, where=step)
        actual |= hash_version(repository, step, version=version)
    for name in sorted(actual.keys() | named.keys()):
        if problem := _hash_problem(actual.get(name), named.get(name)):
            raise RepositoryError(path, problem, where=f"hashes: {name}")


def _hash_problem(actual: str | None, named: str | None) -> str:
    """Compare the hash of a file with the release's; empty if they agree."""
    if actual is None:
        return "the file is not there"
    if named is None:
        return "the file is there but the release does not name it"
    if actual != named:
        was, found = named[:SHORT_DIGITS], actual[:SHORT_DIGITS]
        return f"the file has changed: release {was}…, file {found}…"
    return ""


def require_steps(
    source: object, versions: Mapping[str, int], *, product: Product
) -> None:
    """
    Check that every step of the product has a version, and nothing else has.

    Raises:
        RepositoryError: A step has no version, or a version has no step.
    """
    for step in product.steps:
        if step not in versions:
            raise RepositoryError(
                source, f'names no version of "{step}"', where="versions"
            )
    for name in versions:
        if name not in product.steps:
            problem = f'"{name}" is not a step of "{product.name}"'
            raise RepositoryError(source, problem, where="versions")

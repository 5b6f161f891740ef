"""Give a created product the form in which model_repository has it, and replace it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tollgate.product.creation import check_staged
from tollgate.product.files import ASK_FILE, SCRIPT_FILE
from tollgate.product.placement import displace, folders_of, place
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.release_history import history_path
from tollgate.repository.snapshot import RepositorySnapshot

HOUSE = Path(__file__).resolve().parent.parent
REPOSITORY = HOUSE / "model_repository"
_MEASURED = ("created", "us_per_row")  # keys of artifact.json that each run changes
_DERIVED = {"card.html", "card.md", "release.json"}


def replace_committed(product: str, create: Callable[[Path, Path], None]) -> None:
    """
    Create a product, and replace that of the repository if it differs.

    Args:
        create: Creates it, as it is committed, in the first folder; the second one is
            for other files.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        new = Path(name) / "new"
        new.mkdir()
        create(new, Path(name))
        there = (REPOSITORY / product).is_dir()
        if there and contents(new, product) == contents(REPOSITORY, product):
            print(f"{product}: unchanged")
            return
        if there:
            old = Path(name) / "old"
            old.mkdir()
            displace(REPOSITORY, folders_of(REPOSITORY, product), into=old)
        place(new, repository=REPOSITORY, product=product)
        print(f"{product}: written to {REPOSITORY}")


def finish_committed(
    repository: Path, product: str, *, table: str, origin: str, reason: str
) -> None:
    """
    Leave out the scripts for one table, name another origin, and release the rest.

    Args:
        repository: Contains the created product.
        table: Name of the table that it was created from.
        origin: Origin to name in features.yaml instead.
        reason: Reason of the release.

    Raises:
        RepositoryError: The product is not valid.
    """
    for name in (ASK_FILE, SCRIPT_FILE):
        (repository / product / name).unlink(missing_ok=True)
    step = read_product(repository, product).features_step
    (spec,) = (repository / step).glob("*/features.yaml")
    text = spec.read_text().replace(f"First written from {table}", origin)
    spec.write_text(text)
    release = read_release(repository, product=product)
    snapshot = RepositorySnapshot(repository)
    hashes: dict[str, str] = {}
    for one, version in release.versions.items():
        hashes |= snapshot.hashes(one, version=version)
    committed = msgspec.structs.replace(
        release, hashes=dict(sorted(hashes.items())), reason=reason
    )
    write_release(repository, committed)
    history_path(repository, product).unlink()
    check_staged(repository, product)


def contents(repository: Path, product: str) -> dict[str, Any]:
    """Read a product's files by name, without what each run measures."""
    found: dict[str, Any] = {}
    for folder in folders_of(repository, product):
        for path in (repository / folder).rglob("*"):
            if not path.is_file() or path.name in _DERIVED:
                continue
            content: Any = path.read_bytes()
            if path.name == "artifact.json":
                artifact = msgspec.json.decode(content)
                content = {
                    key: value
                    for key, value in artifact.items()
                    if key not in (*_MEASURED, "files")
                }
            found[str(path.relative_to(repository))] = content
    return found

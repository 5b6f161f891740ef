"""Write a second product next to fraud: the same files under another name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import spec_hash_text, write_release
from tollgate.repository.snapshot import RepositorySnapshot

_STEPS = ("features", "model", "decision")
_NAMED = re.compile(r'\bfraud(?=_(?:features|model|decision)\b)|(?<=name: ")fraud(?=")')
_PRODUCT = re.compile(r"^product: fraud$", re.M)


def add_product(repository: Path, name: str) -> None:
    """
    Copy the fraud product of a repository under another name, and release it.

    Args:
        repository: Repository with the product fraud; is changed.
        name: Name of the copy.
    """
    for step in ("", *(f"_{step}" for step in _STEPS)):
        target = repository / f"{name}{step}"
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / f"fraud{step}", target, ignore=leave)
        for path in target.rglob("*"):
            if path.suffix in (".pbtxt", ".py", ".yaml"):
                text = _NAMED.sub(name, path.read_text())
                path.write_text(_PRODUCT.sub(f"product: {name}", text))
    spec = load_spec(repository / f"{name}_features" / "1" / SPEC_FILE)
    spec_hash = f'"spec_hash": "{spec_hash_text(spec.spec_hash)}"'
    artifact = repository / f"{name}_model" / "1" / "artifact.json"
    changed = re.sub(r'"spec_hash": "[0-9a-f]+"', spec_hash, artifact.read_text())
    artifact.write_text(changed)
    release_first(repository, name)


def release_first(repository: Path, name: str) -> None:
    """Make a release of version 1 of each step of a product."""
    (repository / name / "release.json").unlink(missing_ok=True)
    spec = load_spec(repository / f"{name}_features" / "1" / SPEC_FILE)
    release = compose_release(
        RepositorySnapshot(repository),
        product=name,
        versions={f"{name}_{step}": 1 for step in _STEPS},
        actor="test",
        reason="a second product",
        spec_hash=spec_hash_text(spec.spec_hash),
    )
    write_release(repository, release)

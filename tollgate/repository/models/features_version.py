"""Add a features.yaml as the next version of a product's features step."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tollgate.errors import RepositoryError, SpecError
from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.repository.models.artifact_file import read_artifact
from tollgate.repository.product_models import Product
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.repository.versions import (
    list_versions,
    place_version,
    staged_version,
    withdraw_version,
)
from tollgate.schema import ARTIFACT_FILE


def load_spec_of(path: Path, *, product: str) -> FeatureSpec:
    """
    Read a features.yaml that is not in the repository yet, and check its product.

    Raises:
        SpecError: It cannot be used, or is that of another product.
    """
    spec = load_spec(path)
    if spec.product != product:
        problem = f"is {spec.product!r}; the model is for {product!r}"
        raise SpecError(path, problem, where="product")
    return spec


@contextlib.contextmanager
def new_features(
    spec: Path | None, models: Product, *, source: Path
) -> Iterator[int | None]:
    """
    Add a features.yaml with its hook to the repository; remove it again on an error.

    Args:
        spec: The file; None does nothing.

    Yields:
        Its version; that of an earlier one with the same hash, if there is one.

    Raises:
        SpecError: It cannot be used, or is that of another product.
        RepositoryError: The model was made for other features, or the version cannot be
            written.
    """
    if spec is None:
        yield None
        return
    step, repository = models.features_step, models.repository
    wanted = load_spec_of(spec, product=models.name).spec_hash
    found = read_artifact(source).spec_hash
    if found != spec_hash_text(wanted):
        problem = (
            f"was converted for {found or 'no product'}, {spec} is "
            f"{spec_hash_text(wanted)}: convert it for {spec}"
        )
        raise RepositoryError(source / ARTIFACT_FILE, problem, where="spec_hash")
    versions = sorted(list_versions(repository, step), reverse=True)
    if not versions:
        raise RepositoryError(repository / step, "has no version to take the code of")
    base = versions[0]
    for number in versions:
        with contextlib.suppress(SpecError):
            there = load_spec(repository / step / str(number) / SPEC_FILE)
            if there.spec_hash == wanted:
                yield number
                return
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        source = Path(folder, "version")
        # The code of the step stays the same; its definition changes.
        shutil.copytree(
            repository / step / str(base),
            source,
            ignore=shutil.ignore_patterns(SPEC_FILE, HOOK_FILE, "__pycache__"),
        )
        shutil.copyfile(spec, source / SPEC_FILE)
        if spec.with_name(HOOK_FILE).is_file():
            shutil.copyfile(spec.with_name(HOOK_FILE), source / HOOK_FILE)
        with staged_version(repository, step=step, source=source) as staged:
            number = place_version(staged, repository=repository, step=step)
            try:
                yield number
            except BaseException:
                withdraw_version(staged, repository / step, number=number)
                raise

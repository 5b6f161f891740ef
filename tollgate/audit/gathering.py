"""Read the files of releases from the model repository, for the journal's archive."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from tollgate.errors import TollgateError
from tollgate.explanation import EXPLAIN_FILE
from tollgate.features.hook import HOOK_FILE
from tollgate.features.spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.repository.artifact import ARTIFACT_FILE
from tollgate.repository.history import find_release
from tollgate.repository.product import read_product
from tollgate.repository.release import RELEASE_FILE
from tollgate.repository.versions import list_versions

log = logging.getLogger(__name__)


def read_release_files(
    repository: Path, name: str, *, product: str
) -> dict[str, bytes]:
    """Read the files of a release; return none if the repository does not know it."""
    try:
        release = find_release(repository, product, name)
        models = read_product(repository, product)
        wanted = {
            SPEC_FILE: models.features_step,
            HOOK_FILE: models.features_step,
            POLICY_FILE: models.decision_step,
            ARTIFACT_FILE: models.model_step,
            EXPLAIN_FILE: models.model_step,
        }
        found = {RELEASE_FILE: msgspec.json.encode(release)}
        for file, step in wanted.items():
            path = repository / step / str(release.versions[step]) / file
            if path.exists():
                found[file] = path.read_bytes()
    except (TollgateError, OSError, KeyError) as exc:
        log.warning("release %s cannot be read: %s", name, exc)
        return {}
    return found


def served_specs(repository: Path, product: str) -> dict[int, FeatureSpec]:
    """Read the feature spec of every version in the repository, by spec hash."""
    try:
        step = read_product(repository, product).features_step
        paths = [
            repository / step / str(version) / SPEC_FILE
            for version in list_versions(repository, step)
        ]
        specs = [load_spec(path) for path in paths if path.exists()]
    except TollgateError as exc:
        log.warning("features cannot be read: %s", exc)
        return {}
    return {spec.spec_hash: spec for spec in specs}

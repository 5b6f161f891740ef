"""
Archive releases in the journal, so that their records can be read years later.

When a record names a release for the first time, a new link of the chain stores the
file of the release and the readable files of its versions: features.yaml, policy.yaml,
artifact.json. Of a product that ranks it also stores the catalogue, because records
name items by their position in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import LinkContent
from tollgate.audit.releases.archived_release import (
    NAME,
    ArchivedRelease,
    outcomes_of,
    read_archived_release,
)
from tollgate.errors import TollgateError
from tollgate.explanation import EXPLAIN_FILE
from tollgate.features.fields import hash_words
from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.journal.decision_record import Records
from tollgate.policy import POLICY_FILE
from tollgate.ranking.catalogue import CATALOGUE_FILE, RETRIEVAL_FILE
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import (
    RELEASE_FILE,
    release_of_variant,
)
from tollgate.repository.releases.release_history import (
    find_release,
    read_history,
    releases_of,
)
from tollgate.repository.versions import list_versions
from tollgate.schema import ARTIFACT_FILE, DEFAULT_OUTCOMES, Outcomes

# Read the files of releases from the model repository, for the journal's archive.

log = logging.getLogger(__name__)


def read_release_files(
    repository: Path, name: str, *, product: str
) -> dict[str, bytes]:
    """Read the files of a release; return none if the repository does not know it."""
    try:
        known = releases_of(read_history(repository, product))
        release = known.get(name) or find_release(
            repository, product, release_of_variant(name)
        )
        models = read_product(repository, product)
        wanted = {
            SPEC_FILE: models.features_step,
            HOOK_FILE: models.features_step,
            POLICY_FILE: models.decision_step,
            ARTIFACT_FILE: models.model_step,
            EXPLAIN_FILE: models.model_step,
        }
        if models.ranks:
            step = models.features_step
            wanted |= dict.fromkeys((CATALOGUE_FILE, RETRIEVAL_FILE), step)
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


# Words of a category field that mean consent; a number means consent if it is above
# zero.
CONSENTED = (b"yes", b"true", b"1", b"given")


class ReleaseArchive:
    """
    Releases archived in one journal.

    Args:
        repository: Model repository with new releases; None for none.
        consent: Name of the consent field for all releases; None to use each policy's.
        reread: Updates the local copy of the repository from its source; returns
            whether that succeeded.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        repository: Path | None = None,
        consent: str | None = None,
        reread: Callable[[], bool] = lambda: True,
    ) -> None:
        self._chain = chain
        self._repository = repository
        self._consent = consent
        self._reread = reread
        self._known: dict[str, ArchivedRelease] = {}
        self._specs: dict[int, FeatureSpec | None] = {}
        self._missed: set[str] = set()
        self._outcomes: dict[str, Outcomes | None] = {}  # of releases not archived
        for link in chain.alive("release"):
            self._learn(read_archived_release(chain.folder, link))

    def get(self, name: str) -> ArchivedRelease | None:
        """Return an archived release; None if it was not archived."""
        return self._known.get(name)

    def names(self) -> list[str]:
        """List the names of the archived releases."""
        return list(self._known)

    def archive(self, records: Records) -> None:
        """
        Archive the release of records if it is new and still in the repository.

        Raises:
            JournalError: The chain cannot be written.
        """
        name = records.release
        if name in self._known or name in self._missed or self._repository is None:
            return
        current = self._reread()
        files = read_release_files(self._repository, name, product=records.product)
        if RELEASE_FILE not in files:
            if current:
                self._missed.add(name)
            log.warning("release %s is not in the repository: not archived", name)
            return
        link = self._chain.add(
            LinkContent(kind="release", files=files, facts={NAME: name})
        )
        self._learn(read_archived_release(self._chain.folder, link))

    def feature_names(self, records: Records) -> list[str]:
        """Return the feature names of records; numbers if their spec is unknown."""
        width = records.features.shape[1]
        spec = self._spec(records)
        if spec is None or len(spec.feature_names) != width:
            return [str(at) for at in range(width)]
        return list(spec.feature_names)

    def consent(self, records: Records) -> npt.NDArray[np.bool_]:
        """
        Return which rows may be stored with personal data; bool [N].

        All rows, unless a policy names a consent field; then the rows in which the
        field means yes. If the meaning of its values is unknown, no row.
        """
        rows = len(records)
        archived = self._known.get(records.release)
        name = self._consent or (archived.consent if archived else self._any_consent())
        if name is None:
            return np.ones(rows, np.bool_)
        values = records.fields.get(name)
        spec = self._spec(records)
        declared = {one.name: one.type for one in spec.fields} if spec else {}
        if values is None or name not in declared:
            return np.zeros(rows, np.bool_)
        if declared[name] == "category":
            consented: npt.NDArray[np.bool_] = np.isin(values, hash_words(CONSENTED))
            return consented
        positive: npt.NDArray[np.bool_] = (values > 0) & (values != MISSING)
        return positive

    def outcomes(self, name: str) -> Outcomes:
        """
        Return the words of a release's decisions.

        If its policy is neither archived nor in the repository, they are those of the
        release that was archived last: releases of one product rarely differ in them.
        """
        archived = self._known.get(name)
        found = archived.outcomes if archived else self._served_outcomes(name)
        if found is not None:
            return found
        others = [one.outcomes for one in self._known.values() if one.outcomes]
        return others[-1] if others else DEFAULT_OUTCOMES

    def _served_outcomes(self, name: str) -> Outcomes | None:
        if name not in self._outcomes:
            files: Mapping[str, bytes] = {}
            if self._repository is not None:
                product = self._chain.links[0].product
                files = read_release_files(self._repository, name, product=product)
            self._outcomes[name] = outcomes_of(files)
        return self._outcomes[name]

    def _any_consent(self) -> str | None:
        """Return any archived release's consent field, for one without a policy."""
        return next((one.consent for one in self._known.values() if one.consent), None)

    def _spec(self, records: Records) -> FeatureSpec | None:
        if records.spec_hash not in self._specs and self._repository is not None:
            found = served_specs(self._repository, records.product)
            # Remember a spec that is not there, so that not every chunk searches for
            # it.
            self._specs.setdefault(records.spec_hash, None)
            self._specs.update(found)
        return self._specs.get(records.spec_hash)

    def _learn(self, archived: ArchivedRelease) -> None:
        self._known[archived.name] = archived
        if archived.spec is not None:
            self._specs[archived.spec.spec_hash] = archived.spec

"""Read the files that the journal archived of a release."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from tollgate.audit.chain.links import Link, path_of, read_file, read_links
from tollgate.errors import JournalError, TollgateError
from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.policy.policy_definition import Score
from tollgate.repository.models.artifact_file import Training, decode_training
from tollgate.repository.releases.release_file import RELEASE_FILE, Release
from tollgate.schema import ARTIFACT_FILE, DEFAULT_OUTCOMES, Outcomes

log = logging.getLogger(__name__)

NAME = "name"  # key in the facts of a link

T = TypeVar("T")
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


class JournalExcerpt(msgspec.Struct, frozen=True):
    """The `journal` section of a policy."""

    consent: str | None = None


class RuleExcerpt(msgspec.Struct, frozen=True):
    """Keys of a rule that records need."""

    name: str
    code: str = ""
    owner: str = ""
    before_model: str | None = None


class ScoreExcerpt(msgspec.Struct, frozen=True):
    """A score that is a weighted sum of probabilities, rounded, or a number."""

    of: str | None = None
    value: str | None = None
    weights: dict[str, float] = {}
    decimals: int | None = None


class ListExcerpt(msgspec.Struct, frozen=True):
    """Name of a list of ids that rules may refer to."""

    name: str


class PolicyExcerpt(msgspec.Struct, frozen=True):
    """
    The parts of a policy.yaml that give records their meaning.

    Other parts are ignored, so that policies of older and newer Tollgates can be read.
    """

    labels: tuple[str, ...] = ()
    score: str | ScoreExcerpt = ""
    rules: tuple[RuleExcerpt, ...] = ()
    reasons: dict[str, str] = {}
    lists: tuple[ListExcerpt, ...] = ()
    journal: JournalExcerpt = JournalExcerpt()
    outcomes: tuple[str, str, str] = DEFAULT_OUTCOMES.words

    @property
    def early_rules(self) -> int:
        """Return the bits of the rules that decide before the model."""
        return sum(
            1 << at for at, one in enumerate(self.rules) if one.before_model is not None
        )

    def scores(self) -> Score | None:
        """
        Return how the score follows from probabilities; None if the policy does not
        say.
        """
        part = (
            ScoreExcerpt(of=self.score) if isinstance(self.score, str) else self.score
        )
        alone = part.of if part.of is not None else part.value
        weights = {alone: 1.0} if alone is not None else part.weights
        if not weights or not set(weights) <= set(self.labels):
            return None
        return Score(
            weights=tuple(
                (self.labels.index(label), weight) for label, weight in weights.items()
            ),
            plain=alone is not None,
            decimals=part.decimals,
            number=part.of is None and part.value is not None,
        )


class ArchivedRelease(msgspec.Struct, frozen=True):
    """
    A release as archived in the journal.

    Attributes:
        files: Content of the archived files, by file name.
        spec: Feature spec; None if not archived or not readable.
        policy: Policy; None if not archived or not readable.
        training: Training distribution of the model; None if unknown.
    """

    name: str
    files: Mapping[str, bytes]
    spec: FeatureSpec | None
    policy: PolicyExcerpt | None
    training: Training | None

    @property
    def consent(self) -> str | None:
        """Return the name of the consent field; None without one."""
        return self.policy.journal.consent if self.policy else None

    @property
    def outcomes(self) -> Outcomes | None:
        """Return the words of its decisions; None if its policy is unknown."""
        return Outcomes(self.policy.outcomes) if self.policy else None


def read_archived_release(folder: Path, link: Link) -> ArchivedRelease:
    """
    Read the archived files of a release.

    Raises:
        JournalError: A file cannot be read.
    """
    files = {
        one.name.partition(".")[2]: read_file(path_of(folder, one.name))
        for one in link.files
    }
    return ArchivedRelease(
        name=link.facts[NAME],
        files=files,
        spec=spec_of(files),
        policy=_policy_of(files.get(POLICY_FILE, b"")),
        training=_training_of(files.get(ARTIFACT_FILE, b"")),
    )


def newest_archived_release(folder: Path, name: str) -> ArchivedRelease | None:
    """
    Read the newest archive of a release by name; None if it was not archived.

    Raises:
        JournalError: A file cannot be read.
    """
    found = [
        link
        for link, _ in read_links(folder)
        if link.kind == "release" and link.facts[NAME] == name
    ]
    return read_archived_release(folder, found[-1]) if found else None


def recorded_outcomes(folder: Path) -> dict[str, Outcomes]:
    """
    Return the words of the decisions of each archived release, by its name.

    Raises:
        JournalError: A file cannot be read.
    """
    archived = [
        read_archived_release(folder, link)
        for link, _ in read_links(folder)
        if link.kind == "release"
    ]
    return {one.name: one.outcomes for one in archived if one.outcomes}


def release_of(release: ArchivedRelease) -> Release:
    """
    Decode the release file of an archived release.

    Raises:
        JournalError: The file is damaged.
    """
    try:
        return msgspec.json.decode(release.files[RELEASE_FILE], type=Release)
    except msgspec.MsgspecError as exc:
        raise JournalError(f"release {release.name}", f"is damaged: {exc}") from exc


def spec_of(files: Mapping[str, bytes]) -> FeatureSpec | None:
    """Load the archived feature spec; None if it is missing or cannot be read."""
    if SPEC_FILE not in files:
        return None
    try:
        extra_files = {HOOK_FILE: files[HOOK_FILE]} if HOOK_FILE in files else {}
        return read_with_file(
            SPEC_FILE, files[SPEC_FILE], load_spec, extra_files=extra_files
        )
    except TollgateError as exc:
        log.warning("%s", exc)
        return None


def outcomes_of(files: Mapping[str, bytes]) -> Outcomes | None:
    """Return the words of a release's decisions; None if its policy is unknown."""
    policy = _policy_of(files.get(POLICY_FILE, b""))
    return Outcomes(policy.outcomes) if policy else None


def read_with_file(
    name: str,
    content: bytes,
    read: Callable[[Path], T],
    *,
    extra_files: Mapping[str, bytes] = NO_FILES,
) -> T:
    """
    Call a reader of files with the content of a file.

    The content and `extra_files` are written into a temporary folder.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        for other, its in extra_files.items():
            (Path(folder) / other).write_bytes(its)
        path = Path(folder) / name
        path.write_bytes(content)
        return read(path)


def _policy_of(content: bytes) -> PolicyExcerpt | None:
    if not content:
        return None
    try:
        return msgspec.yaml.decode(content, type=PolicyExcerpt)
    except (msgspec.MsgspecError, ValueError) as exc:
        log.warning("an archived policy cannot be read: %s", exc)
        return None


def _training_of(content: bytes) -> Training | None:
    if not content:
        return None
    try:
        return decode_training(content)
    except (msgspec.MsgspecError, ValueError) as exc:
        log.warning("an archived artifact cannot be read: %s", exc)
        return None

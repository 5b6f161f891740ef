"""What the journal keeps of one release, and how it is read again."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from tollgate.audit.links import Link, path_of, read_file, read_links
from tollgate.errors import JournalError, TollgateError
from tollgate.features.hook import HOOK_FILE
from tollgate.features.spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.policy.definition import Score
from tollgate.repository.artifact import ARTIFACT_FILE
from tollgate.repository.release import RELEASE_FILE, Release

log = logging.getLogger(__name__)

NAME = "name"  # of the facts of a link

T = TypeVar("T")
NOTHING_BESIDE: Mapping[str, bytes] = MappingProxyType({})


class JournalPart(msgspec.Struct, frozen=True):
    """What a policy says of the journal."""

    consent: str | None = None


class RulePart(msgspec.Struct, frozen=True):
    """What a record needs to know of a rule."""

    name: str
    code: str = ""
    owner: str = ""


class ScorePart(msgspec.Struct, frozen=True):
    """A score that is more than one column as it comes."""

    of: str | None = None
    weights: dict[str, float] = {}
    decimals: int | None = None


class ListPart(msgspec.Struct, frozen=True):
    """A list of ids that rules may name."""

    name: str


class PolicyPart(msgspec.Struct, frozen=True):
    """
    The part of a policy.yaml that tells what a record means; the rest is not looked at.

    So a policy of an older or a newer Tollgate can be read, too.
    """

    labels: tuple[str, ...] = ()
    score: str | ScorePart = ""
    rules: tuple[RulePart, ...] = ()
    reasons: dict[str, str] = {}
    lists: tuple[ListPart, ...] = ()
    journal: JournalPart = JournalPart()

    def scores(self) -> Score | None:
        """Tell how probabilities become the score; None where it does not say."""
        part = ScorePart(of=self.score) if isinstance(self.score, str) else self.score
        weights = {part.of: 1.0} if part.of is not None else part.weights
        if not weights or not set(weights) <= set(self.labels):
            return None
        return Score(
            weights=tuple(
                (self.labels.index(label), weight) for label, weight in weights.items()
            ),
            plain=part.of is not None,
            decimals=part.decimals,
        )


class FeatureRange(msgspec.Struct, frozen=True):
    """How a feature was distributed in training; smallest and largest are outermost."""

    quantiles: tuple[float | None, ...] = ()
    missing: float = 0.0


class TrainingPart(msgspec.Struct, frozen=True):
    """
    What a model was trained on.

    Attributes:
        quantiles: Which quantiles each feature's are, from 0 to 1.
        features: By name.
    """

    quantiles: tuple[float, ...] = ()
    features: dict[str, FeatureRange] = {}


class ArtifactPart(msgspec.Struct, frozen=True):
    """The part of an artifact.json that late checks need."""

    training: TrainingPart | None = None


class Kept(msgspec.Struct, frozen=True):
    """
    A release as the journal knows it.

    Attributes:
        name: Its name.
        files: What was kept of it, by name; without those that were not there.
        spec: Its features; None when they were not kept.
        policy: What its policy says; None when it was not kept.
        training: What its model was trained on; None when that is not known.
    """

    name: str
    files: Mapping[str, bytes]
    spec: FeatureSpec | None
    policy: PolicyPart | None
    training: TrainingPart | None

    @property
    def consent(self) -> str | None:
        """Name the field that says whether a row may be kept; None without one."""
        return self.policy.journal.consent if self.policy else None


def read_kept(folder: Path, link: Link) -> Kept:
    """
    Read what the journal kept of a release.

    Raises:
        JournalError: A file of it cannot be read.
    """
    files = {
        one.name.partition(".")[2]: read_file(path_of(folder, one.name))
        for one in link.files
    }
    return Kept(
        name=link.facts[NAME],
        files=files,
        spec=spec_of(files),
        policy=_policy_of(files.get(POLICY_FILE, b"")),
        training=_training_of(files.get(ARTIFACT_FILE, b"")),
    )


def newest_kept(folder: Path, name: str) -> Kept | None:
    """
    Read what a journal kept of a release by its name; None for nothing.

    Raises:
        JournalError: A file of it cannot be read.
    """
    found = [
        link
        for link, _ in read_links(folder)
        if link.kind == "release" and link.facts[NAME] == name
    ]
    return read_kept(folder, found[-1]) if found else None


def release_of(kept: Kept) -> Release:
    """
    Read which versions a release named.

    Raises:
        JournalError: Its file is damaged.
    """
    try:
        return msgspec.json.decode(kept.files[RELEASE_FILE], type=Release)
    except msgspec.MsgspecError as exc:
        raise JournalError(f"release {kept.name}", f"is damaged: {exc}") from exc


def spec_of(files: Mapping[str, bytes]) -> FeatureSpec | None:
    """Read the features that were kept; None without any that can be read."""
    if SPEC_FILE not in files:
        return None
    try:
        beside = {HOOK_FILE: files[HOOK_FILE]} if HOOK_FILE in files else {}
        return with_file(SPEC_FILE, files[SPEC_FILE], load_spec, beside=beside)
    except TollgateError as exc:
        log.warning("%s", exc)
        return None


def with_file(
    name: str,
    content: bytes,
    read: Callable[[Path], T],
    *,
    beside: Mapping[str, bytes] = NOTHING_BESIDE,
) -> T:
    """Read a file's content, and that of files beside it, with what reads files."""
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        for other, its in beside.items():
            (Path(folder) / other).write_bytes(its)
        path = Path(folder) / name
        path.write_bytes(content)
        return read(path)


def _policy_of(content: bytes) -> PolicyPart | None:
    if not content:
        return None
    try:
        return msgspec.yaml.decode(content, type=PolicyPart)
    except (msgspec.MsgspecError, ValueError) as exc:
        log.warning("a policy that was kept cannot be read: %s", exc)
        return None


def _training_of(content: bytes) -> TrainingPart | None:
    if not content:
        return None
    try:
        return msgspec.json.decode(content, type=ArtifactPart).training
    except (msgspec.MsgspecError, ValueError) as exc:
        log.warning("an artifact that was kept cannot be read: %s", exc)
        return None

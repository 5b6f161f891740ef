"""
Detect and check versions that people copy into the repository by hand.

Every few seconds the supervisor looks at the model step's folder. It waits until a
version that no release names is complete, then checks it as `publish` would, and moves
a bad one away from its number. Serving models read copies of their own and are not
affected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tollgate.errors import InputError, TollgateError
from tollgate.repository.configs import config_path
from tollgate.repository.gate_limits import read_gates
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.activation import activate
from tollgate.repository.releases.quarantine import quarantine, unreleased_versions
from tollgate.repository.releases.release_file import Release, read_release
from tollgate.repository.releases.trial_changes import with_challenger
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import ARTIFACT_FILE
from tollgate.supervisor.fault_log import now_text
from tollgate.supervisor.version_checks import (
    State,
    Verdict,
    validate_in_subprocess,
)
from tollgate.worker import Worker

log = logging.getLogger(__name__)

INTERVAL_S = 3.0
_RETRY_S = 30.0  # pause before an incomplete version is checked again
_MOST_MOVED = 20  # versions that were moved away, in `VersionDetector.versions`

Stamp = tuple[tuple[str, int, int], ...]


class DetectedVersion(msgspec.Struct, frozen=True):
    """
    A version that no release names.

    Attributes:
        state: "sound" (valid), "incomplete" or "bad".
        reason: Reason why it is not valid; empty if it is.
        since: Time when this state was found, RFC 3339 in UTC.
        moved_to: Folder that a bad version was moved to; empty while it is at its
            number.
    """

    product: str
    step: str
    version: int
    state: State
    reason: str
    since: str
    moved_to: str = ""


class _Observation:
    """A version as the last check found it."""

    def __init__(self, files: Stamp) -> None:
        self.files = files
        self.changed_s = time.monotonic()
        self.checked_s = 0.0
        self.verdict: Verdict | None = None


class VersionDetector:
    """
    Check the versions that no release names, in a background thread of this context.

    Args:
        repository: The model repository, a folder.
        quiet_s: Seconds for which the files must be unchanged before a version counts
            as bad: a copy may pause.
        on_bad: Called once with each bad version.
        on_valid: Called with each valid version at every check, until it returns True.
    """

    def __init__(
        self,
        repository: Path,
        *,
        product: str,
        quiet_s: float,
        on_bad: Callable[[DetectedVersion], None] = lambda version: None,
        on_valid: Callable[[DetectedVersion], bool] = lambda version: True,
    ) -> None:
        self._repository = repository
        self._product = product
        self._on_bad = on_bad
        self._on_valid = on_valid
        self._quiet_s = quiet_s
        self._seen: dict[int, _Observation] = {}
        self._found: dict[int, DetectedVersion] = {}
        self._moved: list[DetectedVersion] = []
        self._done: set[DetectedVersion] = set()
        self._configs: tuple[str, ...] = ()
        self._config_stamp: Stamp = ()
        self._step = ""
        self._unreadable = ""
        self._worker = Worker(
            f"arrivals-{product}", self._detect_if_readable, pause_s=INTERVAL_S
        )

    @property
    def versions(self) -> list[DetectedVersion]:
        """Versions found in the repository, and versions that were moved away."""
        return [*self._moved, *self._found.copy().values()]

    def __enter__(self) -> VersionDetector:
        """Start the checks."""
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the checks, without waiting for one in progress."""
        self._worker.stop(0)

    def detect(self) -> None:
        """
        Check the versions that no release names once.

        Raises:
            InputError: The repository cannot be read.
        """
        step = self._model_step()
        unreleased = unreleased_versions(
            self._repository, product=self._product, step=step
        )
        for version in self._seen.keys() - set(unreleased):
            del self._seen[version]
            self._found.pop(version, None)
        for version in unreleased:
            self._examine(step, version)
        valid = [one for one in self._found.values() if one.state == "sound"]
        self._done &= set(valid)
        for one in valid:
            if one not in self._done and self._on_valid(one):
                self._done.add(one)

    def _model_step(self) -> str:
        """Return the model step's name; parse configurations only after a change."""
        found = self._configs and _config_stamp(self._repository, self._configs)
        if not found or found != self._config_stamp:
            product = read_product(self._repository, self._product)
            self._configs = (self._product, *product.steps)
            self._config_stamp = _config_stamp(self._repository, self._configs)
            self._step = product.model_step
        return self._step

    def _examine(self, step: str, version: int) -> None:
        directory = self._repository / step / str(version)
        files = _stamp(directory)
        seen = self._seen.get(version)
        if seen is None or seen.files != files:
            self._seen[version] = _Observation(files)
            self._record(step, version, Verdict("incomplete", "its files are changing"))
            return
        if not (directory / ARTIFACT_FILE).is_file():
            verdict = Verdict("incomplete", f"has no {ARTIFACT_FILE} yet")
        else:
            verdict = self._validate(version, seen)
            if _stamp(directory) != files:
                return  # the files changed meanwhile; the next check reads them
        quiet = time.monotonic() - seen.changed_s >= self._quiet_s
        if verdict.state != "bad" or quiet:
            self._record(step, version, verdict)
        else:
            self._record(step, version, Verdict("incomplete", verdict.reason))

    def _validate(self, version: int, seen: _Observation) -> Verdict:
        now_s = time.monotonic()
        early = seen.verdict is not None and seen.verdict.state == "incomplete"
        if seen.verdict is None or (early and now_s - seen.checked_s > _RETRY_S):
            seen.verdict = validate_in_subprocess(
                self._repository, product=self._product, version=version
            )
            seen.checked_s = now_s
        return seen.verdict

    def _record(self, step: str, version: int, verdict: Verdict) -> None:
        before = self._found.get(version)
        state, reason = verdict.state, verdict.reason
        if before is not None and (before.state, before.reason) == (state, reason):
            return
        found = DetectedVersion(self._product, step, version, state, reason, now_text())
        if state == "bad" and verdict.certain:
            place = quarantine(
                self._repository,
                product=self._product,
                step=step,
                version=version,
                reason=reason,
            )
            found = msgspec.structs.replace(found, moved_to=str(place or ""))
        if found.moved_to:
            self._moved = [*self._moved, found][-_MOST_MOVED:]
            self._found.pop(version, None)
        else:
            self._found[version] = found
        self._log(found, first=before is None)

    def _log(self, found: DetectedVersion, *, first: bool) -> None:
        name = f"{found.step} version {found.version}"
        if found.state == "bad":
            where = f"; moved to {found.moved_to}" if found.moved_to else ""
            log.error("%s is bad: %s%s", name, found.reason, where)
            self._on_bad(found)
        elif found.state == "sound":
            log.info("%s is valid; no release names it", name)
        elif first:
            log.info("%s is being copied in", name)

    def _detect_if_readable(self) -> None:
        """Check once; if the repository cannot be read, log the reason once."""
        try:
            self.detect()
            self._unreadable = ""
        except (InputError, OSError) as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                log.warning("copied versions are not checked: %s", error)


def _config_stamp(repository: Path, models: tuple[str, ...]) -> Stamp:
    """Describe the configuration files of models; return () if one cannot be read."""
    try:
        found = [(name, config_path(repository, name).stat()) for name in models]
    except OSError:
        return ()
    return tuple((name, one.st_size, one.st_mtime_ns) for name, one in found)


def _stamp(directory: Path) -> Stamp:
    """Describe files by name, size and modification time."""
    found = []
    for path in sorted(directory.rglob("*")):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # renamed meanwhile
        name = path.relative_to(directory).as_posix()
        found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)


ACTOR = "supervisor"


class ShadowStarter:
    """
    Start shadow trials of versions that were copied in, one at a time.

    If several servers follow one repository, the first of them starts the trial.
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._logged: dict[int, str] = {}
        self._tried: dict[int, tuple[DetectedVersion, Release]] = {}

    def start(self, version: DetectedVersion) -> bool:
        """
        Start the trial of a version; log an obstacle, such as another trial.

        Returns:
            False while an obstacle exists, for example another challenger on trial;
            call again later.
        """
        name = f"{version.step} version {version.version}"
        try:
            gates = read_gates(self._repository, product=version.product)
            if gates.arrivals != "shadow":
                return True
            current = read_release(self._repository, product=version.product)
            if current.challenger is not None:
                other = current.challenger.release
                text = f"{name} waits: {other} is on trial"
                self._log_obstacle(version, text, level=logging.INFO)
                return False
            if self._tried.get(version.version) == (version, current):
                return False  # a new attempt would fail in the same way
            self._tried[version.version] = version, current
            self._activate(version, current, reason=f"{name} was copied in")
        except TollgateError as error:
            text = f"{name} did not become a shadow: {error}"
            self._log_obstacle(version, text, level=logging.WARNING)
            return False
        log.info("%s is on trial as a shadow", name)
        return True

    def _log_obstacle(self, version: DetectedVersion, text: str, *, level: int) -> None:
        """Log an obstacle once for as long as it exists."""
        if self._logged.get(version.version) != text:
            log.log(level, "%s", text)
        self._logged[version.version] = text

    def _activate(
        self, version: DetectedVersion, current: Release, *, reason: str
    ) -> None:
        snapshot = RepositorySnapshot(self._repository)
        changed = with_challenger(
            snapshot,
            product=version.product,
            versions={version.step: version.version},
            mode="shadow",
            percent=0.0,
            actor=ACTOR,
            reason=reason,
        )
        activate(
            snapshot,
            changed,
            action="challenger start",
            actor=ACTOR,
            reason=reason,
            instead_of=current,
        )

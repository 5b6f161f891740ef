"""Start a valid version that was copied in as a shadow, if gates.yaml asks for it."""

from __future__ import annotations

import logging
from pathlib import Path

from tollgate.errors import TollgateError
from tollgate.repository.gate_limits import read_gates
from tollgate.repository.releases.activation import activate
from tollgate.repository.releases.release_file import Release, read_release
from tollgate.repository.releases.trial_changes import with_challenger
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.supervisor.versions.detection import DetectedVersion

log = logging.getLogger(__name__)

ACTOR = "supervisor"


class ShadowStarter:
    """
    Start shadow trials of versions that were copied in, one at a time.

    If several servers follow one repository, the first of them starts the trial.

    Args:
        repository: The model repository.
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._logged: dict[int, str] = {}
        self._tried: dict[int, tuple[DetectedVersion, Release]] = {}

    def start(self, version: DetectedVersion) -> bool:
        """
        Start the trial of a version; log an obstacle, such as another trial.

        Args:
            version: A valid version.

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

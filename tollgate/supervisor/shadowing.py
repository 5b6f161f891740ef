"""A sound version that was copied in, begun as a shadow where gates.yaml says so."""

from __future__ import annotations

import logging
from pathlib import Path

from tollgate.errors import TollgateError
from tollgate.repository.activation import activate
from tollgate.repository.gates import read_gates
from tollgate.repository.release import Release, read_release
from tollgate.repository.trial import with_challenger
from tollgate.supervisor.arrivals import Arrival

log = logging.getLogger(__name__)

ACTOR = "supervisor"


class Shadows:
    """
    Begins the trial of versions that were copied in, one at a time.

    Where several servers follow one repository, the first of them begins it.

    Args:
        repository: The model repository.
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._waiting: set[int] = set()

    def begin(self, arrival: Arrival) -> bool:
        """
        Begin the trial of a version; whatever is in the way is told, changes nothing.

        Args:
            arrival: A sound version.

        Returns:
            False while somebody else is on trial, or where somebody changed the release
            meanwhile: it is to be asked again.
        """
        name = f"{arrival.step} version {arrival.version}"
        current = None
        try:
            gates = read_gates(self._repository, product=arrival.product)
            if gates.arrivals != "shadow":
                return True
            current = read_release(self._repository, product=arrival.product)
            if current.challenger is not None:
                if arrival.version not in self._waiting:
                    self._waiting.add(arrival.version)
                    other = current.challenger.release
                    log.info("%s waits: %s is on trial", name, other)
                return False
            self._begin(arrival, current, reason=f"{name} was copied in")
        except TollgateError as error:
            if current is not None and self._is_another(current):
                return False
            log.warning("%s did not become a shadow: %s", name, error)
            return True
        log.info("%s is on trial as a shadow", name)
        return True

    def _is_another(self, release: Release) -> bool:
        """Tell whether the release is not what it was."""
        try:
            return read_release(self._repository, product=release.product) != release
        except TollgateError:
            return False

    def _begin(self, arrival: Arrival, current: Release, *, reason: str) -> None:
        changed = with_challenger(
            self._repository,
            product=arrival.product,
            versions={arrival.step: arrival.version},
            mode="shadow",
            percent=0.0,
            actor=ACTOR,
            reason=reason,
        )
        activate(
            self._repository,
            changed,
            action="challenger start",
            actor=ACTOR,
            reason=reason,
            instead_of=current,
        )

"""A sound version that was copied in, begun as a shadow where gates.yaml says so."""

from __future__ import annotations

import logging
from pathlib import Path

from tollgate.errors import TollgateError
from tollgate.repository.activation import activate
from tollgate.repository.gates import read_gates
from tollgate.repository.release import read_release
from tollgate.repository.trial import with_challenger
from tollgate.supervisor.arrivals import Arrival

log = logging.getLogger(__name__)

ACTOR = "supervisor"


def begin_shadow(repository: Path, arrival: Arrival) -> None:
    """
    Begin the trial of a version, unless somebody else is on trial.

    Whatever is in the way is told and changes nothing. Where several servers follow
    one repository, the first of them begins it.

    Args:
        repository: The model repository.
        arrival: A sound version.
    """
    name = f"{arrival.step} version {arrival.version}"
    try:
        if read_gates(repository, product=arrival.product).arrivals != "shadow":
            return
        current = read_release(repository, product=arrival.product)
        if current.challenger is not None:
            other = current.challenger.release
            log.info("%s waits: %s is on trial; stop that first", name, other)
            return
        reason = f"{name} was copied in"
        changed = with_challenger(
            repository,
            product=arrival.product,
            versions={arrival.step: arrival.version},
            mode="shadow",
            percent=0.0,
            actor=ACTOR,
            reason=reason,
        )
        activate(
            repository,
            changed,
            action="challenger start",
            actor=ACTOR,
            reason=reason,
            instead_of=current,
        )
    except TollgateError as error:
        log.warning("%s did not become a shadow: %s", name, error)
        return
    log.info("%s is on trial as a shadow", name)

"""Read gates.yaml: the limits at which a challenger is stopped, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tollgate.policy.policy_document import Source, duration_s, read_as

GATES_FILE = "gates.yaml"

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Gates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The content of a gates.yaml; a missing key has its default, null disables a gate.

    Attributes:
        min_rows: Number of rows below which nothing is judged.
        flips_share: Maximum share of rows with another decision.
        p99_ms: Maximum time of 99 of 100 rows: in the server for a canary, unless the
            champion is as slow; for a shadow, of model and policy for its batch.
        errors_share: Maximum share of rows without a usable score.
        degraded_share: Maximum amount by which its share of degraded rows exceeds the
            champion's.
        score_psi: Maximum shift of the scores, as population stability index.
        watch_after: Time for which a promoted challenger is watched, as 30m.
        arrivals: Handling of a sound version that was copied in: only report it, or
            start its shadow trial when no other challenger is on trial.
    """

    version: Literal[1] = 1
    min_rows: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    flips_share: _Share | None = 0.05
    p99_ms: _Positive | None = 50.0
    errors_share: _Share | None = 0.001
    degraded_share: _Share | None = 0.01
    score_psi: _Positive | None = 0.25
    watch_after: str = "30m"
    arrivals: Literal["tell", "shadow"] = "tell"

    @property
    def watch_s(self) -> int:
        """Time for which a promoted challenger is watched, seconds."""
        return duration_s(self.watch_after) or 0


def gates_path(repository: Path, product: str) -> Path:
    """Return the path of a product's gates.yaml."""
    return repository / product / GATES_FILE


def read_gates(repository: Path, *, product: str) -> Gates:
    """
    Read the gates of a product; the defaults if it has no file.

    Raises:
        PolicyError: It cannot be read, has other keys or types; names line and key.
    """
    path = gates_path(repository, product)
    if not path.exists():
        return Gates()
    source = Source(path)
    gates: Gates = read_as(source, Gates)
    if duration_s(gates.watch_after) is None:
        problem = f"{gates.watch_after!r} is no time such as 30m or 2h"
        raise source.refuse(("watch_after",), problem)
    return gates

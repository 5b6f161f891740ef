"""gates.yaml: what a challenger may do before it is stopped, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tollgate.policy.document import duration_s
from tollgate.policy.lines import Source, read_as

GATES_FILE = "gates.yaml"

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Gates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    What a gates.yaml says; what it leaves out is as here, and null asks nothing.

    Attributes:
        version: Of the file.
        min_rows: Rows below which nothing is judged.
        flips_share: Share of rows that may be decided otherwise.
        p99_ms: How long 99 of 100 rows may take: in the server where the challenger
            answers, unless the champion is as late; of a shadow, model and policy of
            its batch.
        errors_share: Share of rows that may be without a usable score.
        degraded_share: By how much its share of degraded rows may be the larger one.
        score_psi: How far the scores may move, as population stability index.
        watch_after: How long a promoted one is watched, as 30m.
        arrivals: What becomes of a sound version that somebody copied in: it is told,
            or its trial as a shadow begins when nobody else is on trial.
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
        """How long a promoted one is watched, s."""
        return duration_s(self.watch_after) or 0


def gates_path(repository: Path, product: str) -> Path:
    """Name the file of a product's gates."""
    return repository / product / GATES_FILE


def read_gates(repository: Path, *, product: str) -> Gates:
    """
    Read the gates of a product; the defaults where it has no file.

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

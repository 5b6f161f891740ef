"""
What a challenger may do before it is stopped: gates, as data.

A gate is broken when not even the better end of the interval is within it, so a few
unlucky rows stop nobody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tollgate.challenger import intervals
from tollgate.challenger.bins import TIME_EDGES_US
from tollgate.challenger.counts import ALL, DEGRADED, ERRORS, Arm, Group, Pairs
from tollgate.challenger.intervals import Interval
from tollgate.challenger.kept import Kept
from tollgate.challenger.shares import apart, arm_share, degraded_apart, flips_share
from tollgate.policy.document import duration_s
from tollgate.policy.lines import Source, read_as

GATES_FILE = "gates.yaml"

State = Literal["waits", "holds", "unsure", "broken"]
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
    """

    version: Literal[1] = 1
    min_rows: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    flips_share: _Share | None = 0.05
    p99_ms: _Positive | None = 50.0
    errors_share: _Share | None = 0.001
    degraded_share: _Share | None = 0.01
    score_psi: _Positive | None = 0.25
    watch_after: str = "30m"

    @property
    def watch_s(self) -> int:
        """How long a promoted one is watched, s."""
        return duration_s(self.watch_after) or 0


class Verdict(msgspec.Struct, frozen=True):
    """
    One gate, and what was found.

    Attributes:
        gate: Its key.
        limit: What it allows.
        found: What is.
        rows: Of how many rows.
        state: "waits" for more rows; "holds" when all of the interval is within the
            limit; "unsure" when a part of it is, or who is to blame is not known;
            "broken" when none is.
    """

    gate: str
    limit: float
    found: Interval
    rows: int
    state: State

    def __str__(self) -> str:
        unit = {"p99_ms": " ms", "score_psi": ""}.get(self.gate, " %")
        by = 100 if unit == " %" else 1
        found = " to ".join(
            f"{end * by:.3g}" for end in (self.found.low, self.found.high)
        )
        return (
            f"{self.gate} {self.state}: {self.found.value * by:.3g}{unit} ({found}) in "
            f"{self.rows:,} rows, allowed {self.limit * by:.3g}{unit}"
        )


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


def judge(kept: Kept, gates: Gates) -> list[Verdict]:
    """Hold what is known of a trial against its gates; those that ask for nothing are
    left out."""
    group = kept.groups.get(ALL, Group())
    found = {
        "flips_share": (
            gates.flips_share,
            flips_share(group.pairs),
            group.pairs.rows,
        ),
        "p99_ms": (gates.p99_ms, *_p99_ms(group.challenger)),
        "errors_share": (
            gates.errors_share,
            arm_share(group.challenger, ERRORS),
            group.challenger.rows,
        ),
        "degraded_share": (gates.degraded_share, *_degraded(kept, group)),
        "score_psi": (gates.score_psi, *_psi(group.pairs)),
    }
    return [
        Verdict(
            name,
            limit,
            interval,
            rows,
            _state(
                interval,
                rows,
                limit,
                gates,
                excused=name == "p99_ms" and _all_are_slow(kept, interval, gates),
            ),
        )
        for name, (limit, interval, rows) in found.items()
        if limit is not None
    ]


def broken(verdicts: list[Verdict]) -> list[Verdict]:
    """Pick the gates that are broken."""
    return [one for one in verdicts if one.state == "broken"]


def passed(verdicts: list[Verdict]) -> bool:
    """Tell whether enough rows were seen for each gate, and none is broken."""
    return all(one.state in ("holds", "unsure") for one in verdicts)


def _p99_ms(arm: Arm) -> tuple[Interval, int]:
    edges_ms = [edge / 1_000 for edge in TIME_EDGES_US]
    return intervals.quantile(arm.times, edges_ms, at=0.99), arm.rows


def _degraded(kept: Kept, group: Group) -> tuple[Interval, int]:
    """
    Compare degraded rows: the store's troubles are everybody's.

    In a watch the same bits count for both, so what was before the promotion is
    compared with; where that is not known, nothing is judged.
    """
    arm, than = group.challenger, _compared(kept)
    if kept.trial.mode == "shadow":
        return degraded_apart(group.pairs), group.pairs.rows
    return apart(arm, DEGRADED, than=than), min(arm.rows, than.rows)


def _compared(kept: Kept) -> Arm:
    """Take what the champion's own answers were like; in a watch, before it."""
    groups = kept.baseline if kept.trial.mode == "watch" else kept.groups
    return groups.get(ALL, Group()).champion


def _all_are_slow(kept: Kept, found: Interval, gates: Gates) -> bool:
    """Tell whether the champion's answers are as late: no fault of the challenger's."""
    than = _compared(kept)
    if kept.trial.mode == "shadow" or than.rows < gates.min_rows:
        return False
    return _p99_ms(than)[0].high >= found.low


def _psi(pairs: Pairs) -> tuple[Interval, int]:
    found = intervals.stability_index(pairs.one_scores, pairs.other_scores)
    return found, pairs.scored


def _state(
    found: Interval, rows: int, limit: float, gates: Gates, *, excused: bool
) -> State:
    if rows < gates.min_rows:
        return "waits"
    if found.low > limit:
        return "unsure" if excused else "broken"
    return "holds" if found.high <= limit else "unsure"

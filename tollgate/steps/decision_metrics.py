"""
Export the metrics of the decision step through Triton's metrics endpoint.

During a batch the step only stores 62 bytes per row; a thread counts them once a
second. Dry runs and rows with an error are counted separately, so that probes do not
count as business.
"""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from tollgate.engine.hysteresis_stage import (
    ROW_KINDS,
    AnsweredDecisions,
    count_kinds,
)
from tollgate.policy.decide import PolicyDecisions
from tollgate.schema import Degraded, Outcomes, context_dtype
from tollgate.steps.metric_buffer import (
    PAUSE_S,
    Labels,
    MetricBuffer,
    export_each_second,
)

if TYPE_CHECKING:
    from tollgate.ranking.rank import RankedList

Array = npt.NDArray[Any]

# From 0.5 ms on, finest around the SLO of 20 ms and the SLA of 50 ms.
STEP_BUCKETS_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01),
    *(0.012, 0.014, 0.016, 0.018, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05),
    *(0.075, 0.1, 0.25, 1.0),
)
SCORE_BUCKETS = (
    *(0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    *(0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0),
)
ROWS_BUCKETS = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 31.0, 32.0)
CLIP = 1e-6  # scores closer to 0 or 1 are clipped to this before the log-odds
# Most scores have log-odds below 0, and counters only rise: each is exported as its
# distance above the minimum.
LEAST = math.log((1 - CLIP) / CLIP)

STEPS = ("features", "model", "decision", "whole")
# Source of a row's features, or of its decision; the first that applies.
SOURCES = ("fallback", "defaults", "last_known", "store")

COUNTERS = {
    "tollgate_rows_total": "Rows by what they were",
    "tollgate_decisions_total": "Decisions by outcome and source",
    "tollgate_score_log_odds_sum": "Sum of scores' log-odds, 13.8155 added to each",
    "tollgate_step_busy_seconds_total": "Time that a step worked",
    "tollgate_gc_collections_total": "Collections of the step's garbage collector",
    "tollgate_hysteresis_rows_total": "Rows by how they met the state of hysteresis",
}
HISTOGRAMS = {
    "tollgate_step_seconds": ("Time of a decision by step", STEP_BUCKETS_S),
    "tollgate_feature_seconds": ("Time of features by source", STEP_BUCKETS_S),
    "tollgate_score": ("Scores", SCORE_BUCKETS),
    "tollgate_batch_rows": ("Rows of a batch of the model", ROWS_BUCKETS),
}

_LOT = 64  # batches counted at once: some 0.3 ms without the interpreter
_CHALLENGER = np.uint32(1 << 31)  # flag next to the degraded bits of a row
_LAST = "earlier_length"  # last field that is copied from a row's context


def _head_dtype() -> np.dtype[np.void]:
    """
    Return the dtype of the start of a context, which is the same for all products.
    """
    layout = context_dtype(())
    names = layout.names or ()
    head_names = names[: names.index(_LAST) + 1]
    return np.dtype([(name, layout[name]) for name in head_names])


HEAD = _head_dtype()


class _Batch(NamedTuple):
    """A batch that waits to be counted, of N rows; `lists` has no or N elements."""

    head: Array
    decision: Array
    score: Array
    marks: Array
    began_us: int
    ended_us: int
    lists: Sequence[RankedList | None]


class DecisionMetrics:
    """
    Count and export the metrics of one decision step.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        labels: Labels of every metric; product, model and version.
        releases: The release that decides, and the challenger's if there is one.
        spec_hash: Rows with features of another spec are not answered, so not counted.
        outcomes: Words of the product for the levels of a decision.
        hysteresis: True if the policy has hysteresis.

    Attributes:
        counters: Descriptions of its counters by name.
    """

    counters: ClassVar[Mapping[str, str]] = COUNTERS

    def __init__(
        self,
        pb: Any,
        *,
        labels: Mapping[str, str],
        releases: tuple[str, ...],
        spec_hash: int,
        outcomes: Outcomes,
        hysteresis: bool = False,
    ) -> None:
        self._releases = releases
        self._spec_hash = spec_hash
        self._words = outcomes.words
        self._waiting: deque[_Batch] = deque()
        self._counters = MetricBuffer(
            pb, counters=self.counters, histograms=HISTOGRAMS, labels=labels
        )
        self._collections = [0, 0, 0]
        self._kinds = np.zeros(len(ROW_KINDS), np.int64)
        self._exported_kinds = self._kinds.copy()
        self._begin(hysteresis=hysteresis)
        self._counters.export()
        self._worker = export_each_second(self.export, name="decision-metrics")

    def batch(
        self,
        context: Array,
        decided: PolicyDecisions,
        *,
        chosen: Array | None,
        began_us: int,
    ) -> None:
        """
        Queue a batch; it is counted later.

        Args:
            context: Of tollgate.schema.context_dtype; [N], contiguous.
            decided: The decisions.
            chosen: Rows that the challenger decided; bool [N], None for none.
            began_us: CLOCK_MONOTONIC when the step took the batch.
        """
        if isinstance(decided, AnsweredDecisions):
            self._kinds += count_kinds(decided)
        rows = len(context)
        head = context.view(np.uint8).reshape(rows, -1)[:, : HEAD.itemsize].copy()
        score = decided.score.copy()  # bad and stored rows are overwritten
        now_us = time.monotonic_ns() // 1000
        marks = decided.degraded.copy()
        if chosen is not None:
            marks[chosen] |= _CHALLENGER
        lists = self._lists_of(decided)
        self._waiting.append(
            _Batch(head, decided.decision, score, marks, began_us, now_us, lists)
        )

    def close(self) -> None:
        """Count and export the batches in the queue."""
        self._worker.stop()

    def export(self) -> None:
        """Count the batches in the queue, and export the numbers."""
        left = len(self._waiting)
        while left:
            lot = min(left, _LOT)
            self._count([self._waiting.popleft() for _ in range(lot)])
            left -= lot
            time.sleep(PAUSE_S)
        for generation, one in enumerate(gc.get_stats()):
            risen = one["collections"] - self._collections[generation]
            self._collections[generation] = one["collections"]
            named = (("generation", str(generation)),)
            self._counters.add("tollgate_gc_collections_total", named, number=risen)
        kinds = self._kinds.copy()
        for place in np.flatnonzero(kinds - self._exported_kinds).tolist():
            risen = int(kinds[place] - self._exported_kinds[place])
            named = (("kind", ROW_KINDS[place]),)
            self._counters.add("tollgate_hysteresis_rows_total", named, number=risen)
        self._exported_kinds = kinds
        self._counters.export(pause=time.sleep)

    def _begin(self, *, hysteresis: bool) -> None:
        """Export series that may stay 0: a rate needs a first value."""
        for kind in ROW_KINDS if hysteresis else ():
            of: Labels = (("kind", kind),)
            self._counters.add("tollgate_hysteresis_rows_total", of, number=0)
        for kind in ("decided", "repeated", "dry", "bad"):
            self._counters.add("tollgate_rows_total", (("kind", kind),), number=0)
        for release in self._releases:
            for word in self._words:
                for source in SOURCES:
                    named = _decision(release, word, source)
                    self._counters.add("tollgate_decisions_total", named, number=0)

    def _lists_of(self, decided: PolicyDecisions) -> Sequence[RankedList | None]:
        """Return the lists of a product that ranks, by row; empty for another one."""
        return ()

    def _count_lists(self, release: str, lists: Sequence[RankedList | None]) -> None:
        """Count lists that a release answered."""

    def _count(self, taken: list[_Batch]) -> None:
        sizes = [len(one.head) for one in taken]
        head = np.concatenate([one.head for one in taken]).reshape(-1).view(HEAD)
        decision = np.concatenate([one.decision for one in taken])
        score = np.concatenate([one.score for one in taken])
        marks = np.concatenate([one.marks for one in taken])
        began = np.array([one.began_us for one in taken])
        ended = np.array([one.ended_us for one in taken])
        lists = [ranked for one in taken for ranked in one.lists]
        self._count_work(head, began, ended, sizes)
        known = head["spec_hash"] == self._spec_hash
        bad = (head["bad"] > 0) & known
        dry = (head["dry_run"] > 0) & known & ~bad
        repeated = (head[_LAST] > 0) & known & ~bad & ~dry
        decided_rows = known & ~bad & ~dry & ~repeated
        for kind, found in (
            ("decided", decided_rows),
            ("repeated", repeated),
            ("dry", dry),
            ("bad", bad),
        ):
            number = int(found.sum())
            self._counters.add("tollgate_rows_total", (("kind", kind),), number=number)
        if not decided_rows.any():
            return
        times = _times(head, np.repeat(began, sizes), np.repeat(ended, sizes))
        source = _sources(marks)
        for place, release in enumerate(self._releases):
            of = decided_rows & ((marks & _CHALLENGER > 0) == place)
            if of.any():
                self._count_release(
                    release,
                    decision=decision[of],
                    score=score[of],
                    source=source[of],
                    times={step: one[of] for step, one in times.items()},
                )
                if lists:
                    own = [lists[row] for row in np.flatnonzero(of).tolist()]
                    self._count_lists(release, own)
        for place, name in enumerate(SOURCES[1:], start=1):
            of = decided_rows & (source == place)
            if of.any():
                named = (("source", name),)
                self._counters.observe(
                    "tollgate_feature_seconds", named, values=times["features"][of]
                )

    def _count_work(
        self, head: Array, began: Array, ended: Array, sizes: list[int]
    ) -> None:
        """Count the working time of both steps, dry runs included."""
        self._counters.observe("tollgate_batch_rows", (), values=np.array(sizes))
        _, firsts = np.unique(head["arrival_us"], return_index=True)
        worked_us = int(head["features_us"][firsts].sum(dtype=np.int64))
        for step, us in (("features", worked_us), ("decision", (ended - began).sum())):
            named = (("step", step),)
            number = float(us) / 1e6
            self._counters.add("tollgate_step_busy_seconds_total", named, number=number)

    def _count_release(
        self,
        release: str,
        *,
        decision: Array,
        score: Array,
        source: Array,
        times: Mapping[str, Array],
    ) -> None:
        places = decision.astype(np.int64) * len(SOURCES) + source
        counts = np.bincount(places, minlength=len(self._words) * len(SOURCES))
        for place in np.flatnonzero(counts).tolist():
            outcome, origin = divmod(place, len(SOURCES))
            named = _decision(release, self._words[outcome], SOURCES[origin])
            number = int(counts[place])
            self._counters.add("tollgate_decisions_total", named, number=number)
        of = (("release", release),)
        for step, values in times.items():
            named = (*of, ("step", step))
            self._counters.observe("tollgate_step_seconds", named, values=values)
        scores = score[~np.isnan(score)].astype(np.float64)
        if len(scores):
            # The sum of a histogram is a counter here, and must not fall.
            above = np.maximum(scores, 0.0)
            self._counters.observe("tollgate_score", of, values=above)
            clipped = np.clip(scores, CLIP, 1 - CLIP)
            heights = np.log(clipped / (1 - clipped)) + LEAST
            total = max(0.0, float(heights.sum()))
            self._counters.add("tollgate_score_log_odds_sum", of, number=total)


def _decision(release: str, word: str, source: str) -> Labels:
    return (("release", release), ("outcome", word), ("source", source))


def _sources(degraded: Array) -> Array:
    """Return the source of each row's decision; positions in SOURCES [N]."""
    found = np.full(len(degraded), SOURCES.index("store"))
    for name, bit in (
        ("last_known", Degraded.LAST_KNOWN_VECTOR),
        ("defaults", Degraded.STORE_UNAVAILABLE),
        ("fallback", Degraded.MODEL_OUTPUT),
    ):
        found[(degraded & np.uint32(bit)) != 0] = SOURCES.index(name)
    return found


def _times(head: Array, began: Array, ended: Array) -> dict[str, Array]:
    """Return how long each row took by step; seconds [N] each."""
    arrival = head["arrival_us"].astype(np.int64)
    features = head["features_us"].astype(np.int64)
    times = {
        "features": features,
        "model": began - arrival - features,
        "decision": ended - began,
        "whole": ended - arrival,
    }
    return {step: np.maximum(one, 0) / 1e6 for step, one in times.items()}

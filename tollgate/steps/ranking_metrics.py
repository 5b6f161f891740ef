"""Export the metrics of the ranking step: where its lists come from, and defects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tollgate.engine.ranking_stage import RankedDecisions
from tollgate.policy.decide import PolicyDecisions
from tollgate.ranking.rank import NONE, RankedList
from tollgate.schema import SOURCES
from tollgate.steps.decision_metrics import COUNTERS, DecisionMetrics

EMPTY = "none"  # source of a list without items
DEFECTS = ("short", "empty", "unranked", "over_cap")


class RankingMetrics(DecisionMetrics):
    """Count and export the metrics of one ranking step: decisions and lists."""

    counters = COUNTERS | {
        "tollgate_lists_total": "Lists by the source of their best item",
        "tollgate_list_items_total": "Items shown, by source",
        "tollgate_explored_items_total": "Items shown that exploration chose",
        "tollgate_list_defects_total": "Lists by defect",
    }

    def _begin(self, *, hysteresis: bool) -> None:
        super()._begin(hysteresis=hysteresis)
        for release in self._releases:
            self._add("tollgate_explored_items_total", release, number=0)
            for source in (*SOURCES, EMPTY):
                self._add("tollgate_lists_total", release, source=source, number=0)
            for source in SOURCES:
                self._add("tollgate_list_items_total", release, source=source, number=0)
            for defect in DEFECTS:
                self._add(
                    "tollgate_list_defects_total", release, defect=defect, number=0
                )

    def _lists_of(self, decided: PolicyDecisions) -> Sequence[RankedList | None]:
        assert isinstance(decided, RankedDecisions)
        return decided.lists

    def _count_lists(self, release: str, lists: Sequence[RankedList | None]) -> None:
        found = [one for one in lists if one is not None]
        best: Counter[str] = Counter(map(_best_source, found))
        items: Counter[str] = Counter()
        defects: Counter[str] = Counter()
        explored = 0
        for one in found:
            shown = one.items != NONE
            items.update(SOURCES[at] for at in one.sources[shown].tolist())
            explored += int(one.explored[shown].sum())
            defects["short"] += not shown.all()
            defects["empty"] += not shown.any()
            defects["unranked"] += not one.by_relevance
            defects["over_cap"] += one.caps_relaxed
        for source, number in best.items():
            self._add("tollgate_lists_total", release, source=source, number=number)
        for source, number in items.items():
            self._add(
                "tollgate_list_items_total", release, source=source, number=number
            )
        for defect, number in defects.items():
            self._add(
                "tollgate_list_defects_total", release, defect=defect, number=number
            )
        self._add("tollgate_explored_items_total", release, number=explored)

    def _add(self, name: str, release: str, *, number: int, **labels: str) -> None:
        named = (("release", release), *labels.items())
        self._counters.add(name, named, number=number)


def _best_source(ranked: RankedList) -> str:
    """Return the source of a list's first item with a score, or of its first item."""
    shown = np.flatnonzero(ranked.items != NONE)
    if not len(shown):
        return EMPTY
    scored = np.flatnonzero(~np.isnan(ranked.scores))
    best = scored[0] if len(scored) else shown[0]
    return SOURCES[ranked.sources[best]]

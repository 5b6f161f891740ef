"""
Read the lists of a product that ranks from its records, and count what they show.

docs/monitor.md explains the figures.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.releases.ranking_replay import read_rankings
from tollgate.audit.releases.record_rows import DETAILS, FEATURE
from tollgate.errors import RepositoryError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.monitor.training_baseline import (
    Reference,
    ReferenceColumn,
    calendar_periods,
)
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.ranking.rank import NONE
from tollgate.ranking.ranking_record import RankingRecord
from tollgate.schema import MAX_LIST_SIZE, SOURCES

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

TENTHS = 10  # groups of items, by popularity
SCORE = "score"  # of the best item, which decides the outcome of the list
_FALLBACK = SOURCES.index("fallback")

# One list: the number of items requested, 0 where the record has no list; the numbers
# of the user's events known and of items that exploration chose; whether the history
# could not be read; and the items shown.
LIST = np.dtype(
    [
        ("count", "u1"),
        ("events", "<u2"),
        ("explored", "u1"),
        ("fallback", "?"),
        ("items", "<i4", (MAX_LIST_SIZE,)),
    ]
)


class ListReader:
    """
    Reads the lists of one release.

    Args:
        catalogue: Items of the release.
        spec: Its feature spec; None if it cannot be read.

    Attributes:
        reference: Columns that are compared, without a distribution.
        tenth: Group of each item by popularity, from 0 for the most popular items on:
            the items of each group have about a tenth of the training's events; int64
            [I].
    """

    def __init__(self, catalogue: Catalogue, spec: FeatureSpec | None) -> None:
        periods = calendar_periods(spec)
        features = spec.feature_names if spec is not None else ()
        own = (("user", "history_events"), ("user", "history_age_h"))
        columns = [
            *(
                ReferenceColumn("feature", name, None, 0.0, periods.get(name, 0.0))
                for name in features
            ),
            *(ReferenceColumn(kind, name, None, 0.0) for kind, name in own),
            ReferenceColumn("items", "popularity", None, 0.0),
            ReferenceColumn("score", SCORE, None, 0.0),
        ]
        self.reference = Reference(0, tuple(columns))
        self._features = [FEATURE + name for name in features]
        self._hash = catalogue.hash
        self._below = _less_popular(catalogue.popularity)
        above = 1.0 - self._below
        self.tenth: I64 = np.minimum(above * TENTHS, TENTHS - 1).astype(np.int64)

    def read(self, own: pl.DataFrame) -> tuple[F32, npt.NDArray[np.void], Bool]:
        """
        Read the lists of a segment.

        Returns:
            The values of the reference's columns, float32 [N, C]; the lists, of LIST
            [N]; and which rows have a list of this catalogue and all features.
        """
        rows = len(own)
        values = np.full((rows, len(self.reference.columns)), np.nan, np.float32)
        lists = np.zeros(rows, LIST)
        lists["items"] = NONE
        has_features = all(name in own.columns for name in self._features)
        if has_features:
            for at, name in enumerate(self._features):
                values[:, at] = own[name].fill_null(np.nan).to_numpy()
        values[:, -1] = own[SCORE].fill_null(np.nan).to_numpy()
        for row, record in enumerate(read_rankings(own[DETAILS].to_list())):
            if (
                isinstance(record, RankingRecord)
                and record.catalogue_hash == self._hash
            ):
                values[row, -4:-1] = self._fill(lists[row], record)
        return values, lists, (lists["count"] > 0) & has_features

    def _fill(
        self, into: npt.NDArray[np.void], record: RankingRecord
    ) -> tuple[float, float, float]:
        """Fill in a list; return number of events, age of the newest, popularity."""
        given, ranked = record.given, record.ranked
        events = np.flatnonzero(
            (given.history_items >= 0) | (given.history_actions >= 0)
        )
        shown = ranked.items != NONE
        items = ranked.items[shown]
        into["count"] = given.count
        into["events"] = len(events)
        into["explored"] = int(ranked.explored[shown].sum())
        into["fallback"] = bool((ranked.sources[shown] == _FALLBACK).any())
        into["items"][: len(items)] = items
        age_h = given.history_age_s[events[0]] / 3600 if len(events) else np.nan
        popularity = self._below[items].mean() if len(items) else np.nan
        return len(events), float(age_h), float(popularity)


def list_reader(
    files: Mapping[str, bytes], spec: FeatureSpec | None
) -> ListReader | str | None:
    """
    Open the reader of a release's lists.

    Args:
        files: Files of the release.
        spec: Its feature spec; None if it cannot be read.

    Returns:
        None for a product that decides, and a text if the catalogue cannot be read.
    """
    if CATALOGUE_FILE not in files:
        return None
    try:
        return ListReader(Catalogue.decode(files[CATALOGUE_FILE]), spec)
    except RepositoryError as exc:
        return f"its {CATALOGUE_FILE} {exc.problem}"


def _less_popular(popularity: F32) -> F64:
    """
    Return the share of the training's events with less popular items; float64 [I].

    Half of the item's own events count, so that the mean over all events is a half.
    """
    order = np.argsort(popularity, kind="stable")
    shares = popularity[order].astype(np.float64)
    shares /= max(float(shares.sum()), 1e-12)
    found = np.empty(len(shares))
    found[order] = np.cumsum(shares) - shares / 2
    return found


class ListFigures(msgspec.Struct, frozen=True):
    """
    Figures of a number of lists.

    Attributes:
        lists: Number of lists.
        without_history: Share of lists for users without any event.
        fallback: Share of lists for users whose history could not be read.
        short: Share of lists with fewer items than requested.
        explored: Share of the items shown that exploration chose.
        coverage: Share of the catalogue's items that were shown.
        tenths: Share of the items shown by popularity, the most popular tenth first.
    """

    lists: int
    without_history: float
    fallback: float
    short: float
    explored: float
    coverage: float
    tenths: tuple[float, ...]


class ListCounts:
    """Counts of lists; `tenth` is that of a ListReader."""

    def __init__(self, tenth: I64) -> None:
        self._tenth = tenth
        self._shown = np.zeros(len(tenth), np.int64)  # times, by item
        self._lists = self._without_history = self._fallback = self._short = 0
        self._explored = 0

    def add(self, lists: npt.NDArray[np.void]) -> None:
        """Count lists, of LIST."""
        lists = lists[lists["count"] > 0]
        items = lists["items"]
        shown = items != NONE
        self._shown += np.bincount(items[shown], minlength=len(self._shown))
        self._lists += len(lists)
        self._fallback += int(lists["fallback"].sum())
        cold = (lists["events"] == 0) & ~lists["fallback"]
        self._without_history += int(cold.sum())
        self._short += int((shown.sum(axis=1) < lists["count"]).sum())
        self._explored += int(lists["explored"].sum(dtype=np.int64))

    def figures(self) -> ListFigures | None:
        """Return the figures; None without a list."""
        if not self._lists:
            return None
        items = max(int(self._shown.sum()), 1)
        tenths = np.bincount(self._tenth, self._shown, minlength=TENTHS) / items
        return ListFigures(
            lists=self._lists,
            without_history=self._without_history / self._lists,
            fallback=self._fallback / self._lists,
            short=self._short / self._lists,
            explored=self._explored / items,
            coverage=float(np.count_nonzero(self._shown) / len(self._shown)),
            tenths=tuple(tenths.tolist()),
        )

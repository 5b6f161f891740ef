"""List metrics of `tollgate monitor`."""

from __future__ import annotations

from tollgate.observability.row import MetricRow
from tollgate.observability.rows_others import PROCESS


def _row(name: str, unit: str, labels: str, text: str) -> MetricRow:
    return MetricRow(
        f"tollgate_monitor_{name}", "gauge", unit, tuple(labels.split()), text
    )


_OF = "product release"
_COLUMN = f"{_OF} window kind name"
_WINDOW = f"{_OF} window"
_LEVEL = f"{_OF} level span"

MONITOR = (
    _row("drift", "", _COLUMN, "1 when the newest judged window drifted in a column"),
    _row("psi", "", _COLUMN, "population stability index against training"),
    _row("ks", "0 to 1", _COLUMN, "largest distance of the distribution functions"),
    _row("shift_sigmas", "sigmas", _COLUMN, "by how much it moved, signed"),
    _row("missing_share", "0 to 1", _COLUMN, "rows without a value"),
    _row("judged_windows", "windows", _WINDOW, "judged, in all that was read"),
    _row("drifted_windows", "windows", _WINDOW, "those of them that drifted"),
    _row(
        "troubled_windows",
        "windows",
        _WINDOW,
        "not judged, because over a tenth of the rows was degraded",
    ),
    _row(
        "decisions",
        "decisions",
        f"{_OF} fate",
        "read: `compared`, `degraded`, `withheld`, `unknown`",
    ),
    _row("decision_share", "0 to 1", f"{_OF} decision", "of the newest window"),
    _row("confidence", "0 to 1", _OF, "mean of the largest probability there"),
    _row("unsure_share", "0 to 1", _OF, "rows without a probability above 0.8 there"),
    _row("degraded_share", "0 to 1", f"{_OF} bit", "rows with a degraded bit there"),
    _row("labelled_decisions", "decisions", _OF, "whose label came in time"),
    _row("frauds", "decisions", _OF, "those of them that were fraud"),
    _row(
        "precision",
        "0 to 1",
        _LEVEL,
        "share of the flagged that were fraud; `level` is `review` or `decline`, "
        "`span` is `all` or `day`, the newest that is old enough",
    ),
    _row("recall", "0 to 1", _LEVEL, "share of the frauds that were flagged"),
    _row(
        "labels_in_time_share",
        "0 to 1",
        "product",
        "labels that came within the label lag",
    ),
    _row(
        "last_decision_timestamp_seconds",
        "s since 1970",
        "product",
        "newest decision that was read",
    ),
    _row(
        "last_look_timestamp_seconds",
        "s since 1970",
        "product",
        "when the journal was read last",
    ),
    _row("look_seconds", "s", "product", "how long that took"),
    _row("unread_segments", "segments", "product", "sealed, and cannot be read"),
    *PROCESS,
)

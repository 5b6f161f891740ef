"""Define the dashboard of the model: decisions, drift, accuracy."""

from __future__ import annotations

from tollgate.observability.panel import Board, Panel, PanelRow, Query, quantile, rate

_OF = 'product="$product"'
_DECISIONS = f"tollgate_decisions_total{{{_OF}}}"
_NO_TRIAL = "nobody is on trial"
_NO_MONITOR = "no monitor reads the journal"
_NO_LABELS = "labels come days later"

_MEAN = (
    f"sum by (release) (increase(tollgate_score_log_odds_sum{{{_OF}}}[1h])) / "
    f"sum by (release) (increase(tollgate_score_count{{{_OF}}}[1h]))"
)
_TRAINED = f"max by (release) (tollgate_score_trained_log_odds{{{_OF}}})"
_SIGMA = f"max by (release) (tollgate_score_trained_deviation{{{_OF}}})"
_FLIPS = (
    f"tollgate_trial_flips{{{_OF}}} / on (product, challenger, mode) "
    f"(tollgate_trial_pairs{{{_OF}}} > 0)"
)


def _monitor(name: str, legend: str, *, more: str = "") -> Query:
    series = f"tollgate_monitor_{name}{{{_OF}{more}}}"
    return Query(series, legend, empty=_NO_MONITOR)


_DECIDED = PanelRow(
    "Decisions",
    (
        Panel(
            "Decisions",
            "rps",
            (Query(rate(_DECISIONS, by="outcome"), "{{outcome}}"),),
            kind="stack",
        ),
        Panel(
            "Share of each",
            "percentunit",
            (
                Query(
                    f"{rate(_DECISIONS, by='outcome')} / on () group_left () "
                    f"{rate(_DECISIONS)}",
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "By release",
            "rps",
            (Query(rate(_DECISIONS, by="release"), "{{release}}"),),
            kind="stack",
        ),
        Panel(
            "Without a usable score",
            "rps",
            (
                Query(
                    rate(f'tollgate_decisions_total{{{_OF},source="fallback"}}'),
                    "decided by the policy's fallback",
                ),
            ),
        ),
    ),
)

_SCORES = PanelRow(
    "Scores",
    (
        Panel(
            "Quantiles",
            "short",
            tuple(
                Query(quantile(share, "tollgate_score", _OF), name)
                for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
            ),
        ),
        Panel(
            "Scores",
            "short",
            (
                Query(
                    f"sum by (le) (increase(tollgate_score_bucket{{{_OF}}}"
                    "[$__rate_interval]))",
                    "{{le}}",
                ),
            ),
            kind="heat",
        ),
        Panel(
            "Standard deviations from training",
            "short",
            (Query(f"({_MEAN} - {_TRAINED}) / {_SIGMA}", "{{release}}"),),
            text="Mean log-odds of an hour against those of training; beyond 2 "
            "TollgateScoreMoved fires.",
        ),
    ),
)

_DRIFT = PanelRow(
    "Drift and accuracy",
    (
        Panel(
            "Drifted columns",
            "short",
            (_monitor("drift", "{{kind}} {{name}}, window {{window}}"),),
        ),
        Panel(
            "Population stability index",
            "short",
            (_monitor("psi", "{{kind}} {{name}}, window {{window}}"),),
            text="Above 0.25 it is another population, by the field's rule of thumb.",
        ),
        Panel(
            "Moved by, standard deviations",
            "short",
            (_monitor("shift_sigmas", "{{kind}} {{name}}, window {{window}}"),),
        ),
        Panel(
            "Confidence",
            "percentunit",
            (
                _monitor("confidence", "mean of the largest probability"),
                _monitor("unsure_share", "unsure"),
            ),
        ),
        Panel(
            "Accuracy of the newest day",
            "percentunit",
            tuple(
                Query(
                    f'tollgate_monitor_{name}{{{_OF},span="day"}}',
                    f"{name} of {{{{level}}}}",
                    empty=_NO_LABELS,
                )
                for name in ("precision", "recall")
            ),
            text="Of the newest day that is old enough for its labels to have come.",
        ),
        Panel(
            "Time since the monitor read the journal",
            "s",
            (
                Query(
                    f"time() - tollgate_monitor_last_look_timestamp_seconds{{{_OF}}}",
                    "s",
                    empty=_NO_MONITOR,
                ),
            ),
        ),
    ),
)

_TRIAL = PanelRow(
    "Challenger",
    (
        Panel(
            "Decided differently",
            "percentunit",
            (Query(_FLIPS, "{{challenger}}, {{mode}}", empty=_NO_TRIAL),),
        ),
        Panel(
            "Mean score",
            "short",
            (
                Query(
                    f"tollgate_trial_score_mean{{{_OF}}}",
                    "{{challenger}}: {{arm}}",
                    empty=_NO_TRIAL,
                ),
            ),
        ),
        Panel(
            "Decisions of both",
            "short",
            (
                Query(
                    f"tollgate_trial_decisions{{{_OF}}}",
                    "{{arm}} {{outcome}}",
                    empty=_NO_TRIAL,
                ),
            ),
        ),
        Panel(
            "Trials",
            "short",
            (
                Query(f"tollgate_trial_taken_total{{{_OF}}}", "decisions read"),
                Query(f"tollgate_trial_ended_total{{{_OF}}}", "trials ended by a gate"),
            ),
        ),
    ),
)

MODEL = Board("tollgate-model", "Tollgate: model", (_DECIDED, _SCORES, _DRIFT, _TRIAL))

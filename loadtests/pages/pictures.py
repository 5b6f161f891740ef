"""Draw pictures of runs, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadtests.paced.raw import STEPS
from loadtests.pages.figures import Figures, Group, waited
from loadtests.results.percentiles import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BINS = 150  # of time
_WIDTHS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300)  # possible widths of a bin
_FEWEST = 100  # requests in a bin, or it has no 99th percentile
_NINES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_COLORS = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown"),
    *("tab:pink", "tab:gray", "tab:olive", "tab:cyan", "navy", "black"),
)

SHOWN_MS = 50
_WIDE_MS = 0.6  # width of a bar that its number of rows fits into
_BATCH_COLORS = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red"),
    *("tab:purple", "tab:brown", "tab:pink", "tab:olive"),
)
_OTHERS = "tab:gray"  # color where the feature step's batch is unknown

_MOST_WINDOWS = 1_000  # windows compared to find a typical one
_MOMENT_US = 50

I64 = npt.NDArray[np.int64]
Spans = npt.NDArray[np.void]


def over_time(one: Figures) -> bytes:
    """Draw latency, rate, throughput and failures over the time of a run."""
    figure = figure_of(11, 6)
    latency, rates = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2]}
    )
    calls = one.raw.calls
    seconds = one.raw.about.scenario.seconds
    edges_s = _edges(seconds, requests=len(calls))
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    _draw_latency(one, latency, edges_s, middle_s)
    answered = calls["kind"] == 0
    ended_us = calls["due_us"] + calls["took_us"]
    for name, at_us, color in (
        ("due", calls["due_us"], "tab:gray"),
        ("answered", ended_us[answered], "tab:green"),
        ("without an answer", ended_us[~answered], "tab:red"),
    ):
        per_s = np.histogram(at_us / 1e6, edges_s)[0] / np.diff(edges_s)
        if name != "without an answer" or per_s.any():
            rates.plot(middle_s, per_s, color=color, label=name, linewidth=1.2)
    rates.set(ylabel="requests/s", xlabel="seconds", xlim=(0, seconds))
    rates.set_ylim(bottom=0)
    rows = one.raw.about.scenario.rows
    decisions = rates.secondary_yaxis(
        "right", functions=(lambda per_s: per_s * rows, lambda per_s: per_s / rows)
    )
    decisions.set_ylabel("decisions/s")
    for axes in (latency, rates):
        _draw_marks(one, axes, named=axes is latency)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1.08, 1), frameon=False)
    figure.suptitle(f"{one.name}: by when requests were due", fontsize=11)
    return png_of(figure)


def _edges(seconds: float, *, requests: int) -> npt.NDArray[np.float64]:
    """Cut time into bins that have enough requests for a percentile, on average."""
    widths_s = [one for one in _WIDTHS_S if seconds / one <= _MOST_BINS]
    full_s = [one for one in widths_s if requests * one / seconds >= 1.5 * _FEWEST]
    width_s = min([*full_s, seconds / 10])
    return np.append(np.arange(0, seconds - width_s / 2, width_s), seconds)


def _draw_latency(
    one: Figures,
    axes: Axes,
    edges_s: npt.NDArray[np.float64],
    middle_s: npt.NDArray[np.float64],
) -> None:
    """Draw percentiles of each bin's own samples."""
    calls = one.raw.calls[waited(one.raw.calls, one.raw)]
    place = np.searchsorted(edges_s, calls["due_us"] / 1e6, side="right") - 1
    bins: list[npt.NDArray[np.int64]] = [
        np.sort(calls["took_us"][place == number].astype(np.int64))
        for number in range(len(middle_s))
    ]
    for name, percent, color, fewest in (
        ("max", 100.0, "tab:gray", 1),
        ("p99", 99.0, "tab:orange", _FEWEST),
        ("p50", 50.0, "tab:blue", 1),
    ):
        values = [
            percentile(took_us, percent) / 1e3 if len(took_us) >= fewest else np.nan
            for took_us in bins
        ]
        axes.plot(middle_s, values, color=color, label=name, linewidth=1.2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("latency, ms")


def _draw_marks(one: Figures, axes: Axes, *, named: bool) -> None:
    about = one.raw.about
    warm_up_s = about.scenario.warm_up_s
    axes.axvspan(0, warm_up_s, color="tab:gray", alpha=0.15, linewidth=0)
    for mark in about.marks:
        if mark.at_s <= 0:
            continue
        axes.axvline(mark.at_s, color="black", linewidth=0.8, linestyle=":")
        if named:
            axes.annotate(
                mark.words,
                (mark.at_s, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3),
                textcoords="offset points",
                rotation=90,
                va="top",
                fontsize=8,
            )


def percentile_curves(groups: Sequence[Group]) -> bytes:
    """Draw the latency of every percentile, one line per run, one color per group."""
    figure = figure_of(11, 5)
    axes = figure.subplots()
    most = 0.0
    for place, group in enumerate(groups):
        color = _COLORS[place % len(_COLORS)]
        for number, one in enumerate(group.runs):
            tail, took_ms = _curve(one)
            most = max(most, float(tail[-1]))
            label = group.title if number == 0 else None
            axes.plot(tail, took_ms, color=color, label=label, linewidth=1.2, alpha=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    shown = [nine for nine in _NINES if 1 / (1 - nine / 100) <= max(most, 10.0)]
    axes.set_xticks([1 / (1 - nine / 100) for nine in shown], [f"{n:g}" for n in shown])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="percentile", ylabel="latency, ms", xlim=(1, max(most, 10.0)))
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    figure.suptitle("Latency by percentile, each run by itself", fontsize=11)
    return png_of(figure)


def _curve(one: Figures) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return some hundred points: 1 / share above, and the sample there, ms."""
    scenario = one.raw.about.scenario
    calls = one.raw.calls[waited(one.raw.calls, one.raw)]
    inside = calls["due_us"] >= scenario.warm_up_s * 1e6
    ordered = np.sort(calls["took_us"][inside].astype(np.int64))
    tail = np.geomspace(1, len(ordered), 400)
    rank = np.ceil(np.round((1 - 1 / tail) * len(ordered), 6)).astype(int)
    return tail, ordered[np.maximum(rank, 1) - 1] / 1e3


def layer_bars(groups: Sequence[Group]) -> bytes | None:
    """Draw p50 and p99 of every layer by group; None when layers were not recorded."""
    layered = [group for group in groups if any(one.layers for one in group.runs)]
    if not layered:
        return None
    names = list(next(one for one in layered[0].runs if one.layers).layers)
    figure = figure_of(11, 1.4 + 0.22 * len(names) * len(layered) + 0.5)
    axes = figure.subplots()
    places = np.arange(len(names))
    height = 0.8 / len(layered)
    for number, group in enumerate(layered):
        runs = [one for one in group.runs if one.layers]
        color = _COLORS[number % len(_COLORS)]
        at = places + (number - (len(layered) - 1) / 2) * height
        for spent, alpha, name in ((1, 0.35, "p99"), (0, 1.0, "p50")):
            values = [
                sorted(one.layers[layer][spent] for one in runs)[(len(runs) - 1) // 2]
                for layer in names
            ]
            label = f"{group.title}, {name}"
            axes.barh(at, values, height * 0.9, color=color, alpha=alpha, label=label)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("ms; the middle run's")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    figure.suptitle("Layers", fontsize=11)
    return png_of(figure)


def figure_of(width: float, height: float) -> Figure:
    """Make an empty figure; width and height in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png_of(figure: Figure) -> bytes:
    """Render a figure as PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


# Draw the batches of each step over some milliseconds.


def batches_over_time(one: Figures) -> bytes | None:
    """
    Draw the batches of the 50 ms with the median activity.

    A batch has the color of the batch of the feature step that its first request came
    from. None when batches were not recorded.
    """
    batches = one.raw.batches
    if one.at_once is None:
        return None
    from_us = _usual_us(one)
    until_us = from_us + SHOWN_MS * 1_000
    ends_us = batches["start_us"] + batches["took_us"]
    shown = batches[(ends_us > from_us) & (batches["start_us"] < until_us)]
    figure = figure_of(11, 3.6)
    lanes, number = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]}
    )
    _draw_lanes(lanes, shown, from_us=from_us)
    _draw_number(number, shown, from_us=from_us, until_us=until_us)
    several = 100 * sum(one.at_once.together[2:])
    figure.suptitle(
        f"{one.name}: batches with their rows, from {from_us / 1e6:g} s on; over the "
        f"whole run several steps work at once for {several:.0f} % of the time",
        fontsize=11,
    )
    return png_of(figure)


def _draw_lanes(axes: Axes, shown: Spans, *, from_us: int) -> None:
    """Draw a bar for each batch, a lane for each step."""
    origins = np.unique(shown["origin"][shown["origin"] >= 0])
    for batch in shown:
        place = int(np.searchsorted(origins, batch["origin"]))
        color = (
            _BATCH_COLORS[place % len(_BATCH_COLORS)]
            if batch["origin"] >= 0
            else _OTHERS
        )
        start_ms = (int(batch["start_us"]) - from_us) / 1e3
        took_ms = int(batch["took_us"]) / 1e3
        lane = int(batch["step"])
        axes.barh(lane, took_ms, 0.8, start_ms, color=color, edgecolor="white", lw=0.5)
        middle_ms = start_ms + took_ms / 2
        if took_ms >= _WIDE_MS and 0 < middle_ms < SHOWN_MS:
            rows = str(int(batch["rows"]))
            axes.text(middle_ms, lane, rows, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(STEPS)), STEPS)
    axes.set_ylim(len(STEPS) - 0.5, -0.5)
    axes.set_xlim(0, SHOWN_MS)


def _draw_number(axes: Axes, shown: Spans, *, from_us: int, until_us: int) -> None:
    """Draw how many steps have a batch in progress."""
    at_us = np.arange(from_us, until_us, 10)
    number = _at_work(shown, at_us)
    axes.fill_between((at_us - from_us) / 1e3, number, step="post", color="tab:gray")
    axes.set_yticks(range(len(STEPS) + 1))
    axes.set(ylabel="at work", xlabel="ms")
    axes.grid(alpha=0.3, axis="y")


def _usual_us(one: Figures) -> int:
    """Pick the 50 ms with the median of the time in which several steps work."""
    scenario = one.raw.about.scenario
    begin_us = round(scenario.warm_up_s * 1e6)
    window_us = SHOWN_MS * 1_000
    windows = int((scenario.seconds * 1e6 - begin_us) // window_us)
    if windows < 1:
        return begin_us
    starts = np.arange(windows)[:: max(1, windows // _MOST_WINDOWS)]
    moments = np.arange(0, window_us, _MOMENT_US)
    at_us = begin_us + starts[:, None] * window_us + moments
    several = (_at_work(one.raw.batches, at_us.reshape(-1)) > 1).reshape(at_us.shape)
    middle = np.argsort(several.mean(axis=1), kind="stable")[(len(starts) - 1) // 2]
    return begin_us + int(starts[middle]) * window_us


def _at_work(batches: Spans, at_us: I64) -> I64:
    """Count the steps that have a batch in progress at each of these moments."""
    number = np.zeros(len(at_us), np.int64)
    for place in range(len(STEPS)):
        of = batches[batches["step"] == place]
        began, ended = np.sort(of["start_us"]), np.sort(of["start_us"] + of["took_us"])
        number += np.searchsorted(began, at_us, side="right") > np.searchsorted(
            ended, at_us, side="right"
        )
    return number

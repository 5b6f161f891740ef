"""Draw the batches of each step over some milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadtests.paced.raw import STEPS
from loadtests.pages.figures import Figures
from loadtests.pages.pictures import figure_of, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_MS = 50
_WIDE_MS = 0.6  # width of a bar that its number of rows fits into
_COLORS = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red"),
    *("tab:purple", "tab:brown", "tab:pink", "tab:olive"),
)
_OTHERS = "tab:gray"  # color where the feature step's batch is unknown

_MOST_WINDOWS = 1_000  # windows compared to find a typical one
_MOMENT_US = 50

I64 = npt.NDArray[np.int64]
Spans = npt.NDArray[np.void]


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
        color = _COLORS[place % len(_COLORS)] if batch["origin"] >= 0 else _OTHERS
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
    """
    Pick the 50 ms with the median of the time in which several steps work at once.
    """
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

"""
Report on raw results of `python -m loadtests.run`.

    python -m loadtests.page FILE... [--html OUT.html] [--markdown OUT.md]

Files of one scenario, size and label are runs of the same: one line holds their median
and range. Nothing is averaged.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadtests.harness import (
    Report,
    command_parser,
    run_command,
)
from loadtests.paced.raw import STEPS, About, read_raw
from loadtests.pages import pictures
from loadtests.pages.figures import Figures, Group, figures_of, groups_of
from loadtests.pages.pictures import figure_of, png_of
from loadtests.pages.tables import Table, tables_of
from tollgate.errors import InputError
from tollgate.templating import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Draw the batches of each step over some milliseconds.

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


# Write the report as one self-contained HTML page.


def page(
    title: str,
    *,
    tables: Sequence[Table],
    pictures: Sequence[tuple[str, bytes]],
    notes: Sequence[str],
) -> str:
    """
    Write the page.

    Args:
        title: Title of the page.
        tables: In order; the first stands before the pictures.
        pictures: Caption and PNG of each picture.
        notes: Notes on the measurement, a line each.
    """
    return render(
        "loadtests/pages/templates/report.html.j2",
        {
            "title": title,
            "tables": tables,
            "pictures": [
                (caption, base64.b64encode(png).decode()) for caption, png in pictures
            ],
            "notes": notes,
        },
    )


_TITLE = "Load tests"
_OPEN_LOOP = (
    "Open loop: requests are sent when they are due (Poisson), whatever became of "
    "those before them; latency counts from then. Percentiles are samples that "
    "occurred, of each run by itself; requests that nobody answered in time count with "
    "the time that their callers waited."
)
Picture = tuple[str, bytes]


def main(arguments: Sequence[str]) -> int:
    """Read files; write or print the report."""
    parser = command_parser("page")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--html", type=Path, help="one page with all in it")
    parser.add_argument("--markdown", type=Path, help="with its pictures next to it")
    parser.add_argument("--title", default=_TITLE)
    return run_command(parser, arguments, measure=write_pages)


def write_pages(options: argparse.Namespace) -> Report:
    """Write the report, or return it where no file is named."""
    for flag in ("html", "markdown"):
        path = getattr(options, flag)
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError(f"--{flag}", f"{path.parent} is not a folder")
    groups = groups_of(
        [figures_of(read_raw(one), name=one.stem) for one in options.files]
    )
    return Report(
        write(groups, title=options.title, html=options.html, markdown=options.markdown)
    )


def write(
    groups: Sequence[Group], *, title: str, html: Path | None, markdown: Path | None
) -> str:
    """Write the requested files; return Markdown when none is requested."""
    tables, notes = tables_of(groups), notes_of(groups)
    if html is None and markdown is None:
        return to_markdown(title, tables=tables, notes=notes, files=[])
    drawn = _drawn(groups)
    if html is not None:
        html.write_text(page(title, tables=tables, pictures=drawn, notes=notes))
    if markdown is not None:
        files = []
        for number, (words, content) in enumerate(drawn, start=1):
            path = markdown.with_name(f"{markdown.stem}-{number}.png")
            path.write_bytes(content)
            files.append((words, path.name))
        text = to_markdown(title, tables=tables, notes=notes, files=files)
        markdown.write_text(text)
    return ""


def _drawn(groups: Sequence[Group]) -> list[Picture]:
    found = [("latency by percentile", pictures.percentile_curves(groups))]
    layers = pictures.layer_bars(groups)
    if layers is not None:
        found.append(("layers", layers))
    for group in groups:
        for one in group.runs:
            found.append((f"{one.name} over time", pictures.over_time(one)))
            batches = batches_over_time(one)
            if batches is not None:
                found.append((f"{one.name}, batches of the steps", batches))
    return found


def to_markdown(
    title: str,
    *,
    tables: Sequence[Table],
    notes: Sequence[str],
    files: Sequence[tuple[str, str]],
) -> str:
    """
    Write the report as Markdown.

    Args:
        title: Heading of the report.
        tables: Tables in order.
        notes: Notes on the measurement.
        files: Pictures: caption, and file name.
    """
    lines = [f"# {title}"]
    for table in tables:
        rule = ["---", *["---:"] * (len(table.head) - 1)]
        lines += ["", f"## {table.title}", ""]
        lines += [table.note, ""] if table.note else []
        for cells in (table.head, rule, *table.rows):
            lines.append("| " + " | ".join(cells) + " |")
    if files:
        lines += ["", "## Pictures"]
        for words, name in files:
            lines += ["", f"![{words}]({name})"]
    lines += ["", "## How it was measured", ""]
    lines += [f"* {note}" for note in notes]
    return "\n".join(lines) + "\n"


def notes_of(groups: Sequence[Group]) -> list[str]:
    """List the conditions of the figures; those that all runs share appear once."""
    runs = [one.raw.about for group in groups for one in group.runs]
    times: dict[str, list[str]] = {}
    for about in runs:
        moment, _, rest = about.measured.partition(", ")
        times.setdefault(rest, []).append(moment)
    servers = [about.server for about in runs if about.server is not None]
    releases = ", ".join(dict.fromkeys(f"`{one.release}`" for one in servers))
    return [
        _OPEN_LOOP,
        *dict.fromkeys(_describe_run(about) for about in runs),
        *dict.fromkeys(f"Store before: {about.store}." for about in runs),
        *([f"Release: {releases}."] if releases else []),
        *(f"Measured {_span(moments)}, {rest}." for rest, moments in times.items()),
        *dict.fromkeys(f"`{about.command}`" for about in runs),
    ]


def _describe_run(about: About) -> str:
    scenario = about.scenario
    again = f" and ask up to {scenario.retries} times again" if scenario.retries else ""
    return (
        f"{about.name}: {scenario.says or 'as given'}; {scenario.seconds:g} s with "
        f"{scenario.warm_up_s:g} s of warm-up, callers give up after "
        f"{scenario.timeout_ms} ms{again}, {about.connections} connections."
    )


def _span(moments: Sequence[str]) -> str:
    first, last = min(moments), max(moments)
    return first if first == last else f"{first} to {last}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

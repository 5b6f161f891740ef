"""
Report on raw results of `python -m loadtests.run`.

    python -m loadtests.pages FILE... [--html OUT.html] [--markdown OUT.md]

Files of one scenario, size and label are runs of the same: one line holds their median
and range. Nothing is averaged.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.harness import (
    Report,
    command_parser,
    run_command,
)
from loadtests.paced.raw import About, read_raw
from loadtests.pages import pictures
from loadtests.pages.figures import Group, figures_of, groups_of
from loadtests.pages.tables import Table, tables_of
from loadtests.results.markdown import markdown_table
from tollgate.errors import InputError
from tollgate.templating import render

# Write the report as one self-contained HTML page.


def page(
    title: str,
    *,
    tables: Sequence[Table],
    drawn: Sequence[Picture],
    notes: Sequence[str],
) -> str:
    """
    Write the page.

    Args:
        tables: In order; the first stands before the pictures.
        drawn: Caption and PNG of each picture.
        notes: Notes on the measurement, a line each.
    """
    return render(
        "loadtests/pages/templates/report.html.j2",
        {
            "title": title,
            "tables": tables,
            "pictures": [
                (caption, base64.b64encode(png).decode()) for caption, png in drawn
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
        html.write_text(page(title, tables=tables, drawn=drawn, notes=notes))
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
            batches = pictures.batches_over_time(one)
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
        files: Pictures: caption, and file name.
    """
    lines = [f"# {title}"]
    for table in tables:
        lines += ["", f"## {table.title}", ""]
        lines += [table.note, ""] if table.note else []
        lines += markdown_table(table.head, table.rows)
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

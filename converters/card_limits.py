"""Write the card section that lists the limits of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from converters.artifact import Artifact
from converters.card_document import Cell, Line, Name, Points, Section, line
from converters.card_numbers import count
from converters.card_proof import before_quantising
from converters.quality_record import Quality

if TYPE_CHECKING:
    from tollgate.explanation import Explanation

_SHOWN = 12  # names in one sentence


def limits(
    artifact: Artifact, quality: Quality | None, *, explanation: Explanation | None
) -> Section:
    """List everything that is not proven, not known or not measured."""
    points = [
        *_of_the_proof(artifact),
        *_of_the_rows(artifact),
        *_of_the_quality(quality),
    ]
    if explanation is None or explanation.reason:
        points.append(line("No exact explanation of a single score can be given."))
    return Section("Limits", (Points(lines=tuple(points)),))


def _of_the_proof(artifact: Artifact) -> list[Line]:
    runtimes = ", ".join(one.runtime for one in artifact.parity)
    points = [
        line(
            "The proof holds for ",
            Name(runtimes),
            " on a CPU. Other runtimes, and a GPU, were not compared.",
        ),
        line(
            "Features are float32 when they are served. A source that was given "
            "float64 rows can answer otherwise where rounding moves a value across a "
            "split."
        ),
    ]
    if before_quantising(artifact):
        text = "The proof and the targets are of the model before it was quantised."
        points.append(line(text))
    source = artifact.source
    if source.written_by:
        points.append(
            line(
                "The model was written by ",
                Name(f"{source.framework} {source.written_by}"),
                " and read by ",
                Name(source.version),
                ", which does not promise the same answers: the proof is of what the "
                "latter makes of it. Compare with answers that the former gave.",
            )
        )
    refused = max(one.unanswered for one in artifact.parity)
    if refused:
        points.append(
            line(
                f"The source itself refuses {count(refused)} of the rows it was asked; "
                "what the converted model answers to them was compared with nothing."
            )
        )
    for trade in artifact.trades:
        points.append(
            line(
                "The model was changed (",
                Name(f"{trade.kind}: {trade.detail}"),
                "): it does not answer as the model that was handed in. How far apart "
                "they are stands under Made smaller.",
            )
        )
    return points


def _of_the_rows(artifact: Artifact) -> list[Line]:
    found = artifact.training
    if found is None:
        return [line("Which values its features had in training is not known.")]
    points = [
        line(
            "Values outside the ranges shown under What it was trained on were not in "
            "those rows. Beyond them the model is compared with its source, and not "
            "known to be right."
        )
    ]
    empty = [name for name, one in found.features.items() if not one.quantiles]
    same = [
        name
        for name, one in found.features.items()
        if one.quantiles and one.quantiles[0] == one.quantiles[-1]
    ]
    whole = [name for name, one in found.features.items() if one.missing == 0]
    for names, words in (
        (empty, "Without any value in those rows: "),
        (same, "With one and the same value in all of those rows: "),
        (whole, "Never missing in those rows: "),
    ):
        if names:
            points.append(line(words, *_some(names), "."))
    return points


def _of_the_quality(quality: Quality | None) -> list[Line]:
    if quality is None:
        return [line("How good it is, and for whom, was not measured.")]
    points = []
    if quality.origin == "sample":
        points.append(
            line(
                "Whether it was trained on the rows that quality was measured on is "
                "not known. If so, that quality says nothing about new rows."
            )
        )
    points.append(
        line(
            "Quality holds for rows like those it was measured on: later ones, and "
            "ones chosen in another way, can be different."
        )
    )
    for segment in quality.segments:
        for group in segment.groups:
            if group.reason:
                points.append(
                    line(
                        "Too few rows to say how good it is for ",
                        Name(f"{segment.column} = {group.name}"),
                        f": {group.reason}.",
                    )
                )
    if not quality.segments:
        points.append(line("Quality was not measured by segment."))
    return points


def _some(names: Sequence[str]) -> list[Cell]:
    """List the first few names and the number of the others."""
    pieces: list[Cell] = []
    for name in names[:_SHOWN]:
        pieces += [Name(name), ", "]
    pieces = pieces[:-1]
    if len(names) > _SHOWN:
        pieces.append(f" and {count(len(names) - _SHOWN)} more")
    return pieces

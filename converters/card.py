"""
Write the card of a converted model: its origin, its proof and its quality.

The content comes from the model's record, its measured quality and its explanation; the
card says where something is not known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from converters import card_limits, card_model, card_proof
from converters.artifact import Artifact
from converters.card_document import Card, Name, Tile, line
from converters.card_html import html_of
from converters.card_markdown import markdown_of
from converters.card_numbers import count, delta, measure, speed
from converters.card_quality import is_perfect, quality_sections
from converters.quality_record import Quality
from tollgate.repository.atomic import replace_file

if TYPE_CHECKING:
    from tollgate.explanation import Explanation

CARD_MARKDOWN_FILE = "card.md"
CARD_HTML_FILE = "card.html"


def write_card(
    folder: Path,
    artifact: Artifact,
    *,
    quality: Quality | None = None,
    explanation: Explanation | None = None,
) -> tuple[Path, Path]:
    """
    Write card.md and card.html.

    Args:
        folder: Folder with the model's record.
        artifact: The model's record.
        quality: Quality on labelled rows; None when there were none.
        explanation: Content of explain.npz; None when there is no such file.

    Returns:
        Paths of the two files.

    Raises:
        OSError: They cannot be written.
    """
    card = card_of(artifact, quality=quality, explanation=explanation)
    paths = folder / CARD_MARKDOWN_FILE, folder / CARD_HTML_FILE
    for path, text in zip(paths, (markdown_of(card), html_of(card)), strict=True):
        replace_file(path, text.encode())
    return paths


def card_of(
    artifact: Artifact, *, quality: Quality | None, explanation: Explanation | None
) -> Card:
    """Build the content of a card; the arguments are those of `write_card`."""
    sections = [
        card_model.identity(artifact),
        card_proof.proof(artifact),
        *quality_sections(quality, trained_on=_trained_on(artifact)),
        card_proof.timing(artifact),
        card_proof.trades(artifact),
        card_model.training(artifact),
        card_model.explanations(explanation),
        card_limits.limits(artifact, quality, explanation=explanation),
    ]
    return Card(
        title=line(
            Name(artifact.source.framework), " ", Name(artifact.source.objective)
        ),
        tiles=(
            _agreement(artifact),
            _ranking(quality, trained_on=_trained_on(artifact)),
            _speed(artifact),
            _size(artifact),
        ),
        sections=tuple(one for one in sections if one is not None),
    )


def _agreement(artifact: Artifact) -> Tile:
    flips = max(one.flips for one in artifact.parity)
    farthest = max(one.max_delta for one in artifact.parity)
    passed = all(one.passed for one in artifact.parity)
    runtimes = len(artifact.parity)
    before = card_proof.before_quantising(artifact)
    return Tile(
        title=f"{'Before quantising, against' if before else 'Against'} its source",
        figure="agrees" if passed else "DIFFERS",
        detail=f"{count(flips)} flips, at most {delta(farthest)} apart, in "
        f"{count(runtimes)} {'runtime' if runtimes == 1 else 'runtimes'}",
        mood="bad" if not passed else "plain" if before else "good",
    )


def _trained_on(artifact: Artifact) -> bool:
    """Return whether the record's labelled rows are those it was trained on."""
    found = artifact.training
    labelled = found is not None and found.frauds is not None
    return labelled and found is not None and found.origin == "training"


def _ranking(quality: Quality | None, *, trained_on: bool) -> Tile:
    if quality is None:
        if trained_on:
            problem = "training rows alone, which say nothing about new ones"
            return Tile("AUC", "not measured", problem, "bad")
        return Tile("AUC", "not measured", "no labels were handed in")
    found = quality.overall
    if found.auc is None:
        return Tile("AUC", "not measured", found.reason)
    between = ""
    if found.interval is not None:
        low, high = found.interval
        between = f"95 %: {measure(low)} to {measure(high)}, "
    title, positives = "Mean AUC", ""
    if quality.positive is not None:
        title, positives = "AUC", f", {count(found.positives)} of them positive"
    trained = "not trained on"
    if quality.origin == "sample":
        trained = "perhaps trained on, which would say nothing about new ones"
    detail = f"{between}{count(found.rows)} labelled rows{positives}, {trained}"
    mood: Literal["plain", "bad"] = "bad" if is_perfect(quality) else "plain"
    return Tile(title, measure(found.auc), detail, mood)


def _speed(artifact: Artifact) -> Tile:
    if not artifact.us_per_row:
        return Tile("Speed", "not measured", "in this record")
    largest = max(artifact.us_per_row)
    return Tile(
        title="Speed",
        figure=f"{speed(artifact.us_per_row[largest])} µs",
        detail=f"per row in batches of {largest}, one thread",
    )


def _size(artifact: Artifact) -> Tile:
    trees = artifact.source.trees
    return Tile(
        title="Size",
        figure=f"{artifact.graph.size_bytes / 1e3:,.0f} kB",
        detail=f"{count(trees)} trees" if trees else "no trees",
    )

"""Write the card sections about the model, its training rows and its explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from converters.artifact import Artifact, Training
from converters.card_document import Block, Cell, Line, Name, Section, Table, line
from converters.card_numbers import UNKNOWN, count, delta, share, value
from converters.model import Vocabulary

if TYPE_CHECKING:
    from tollgate.explanation import Explanation

_SHOWN_LEVELS = {
    0.0: "smallest",
    0.05: "5 %",
    0.5: "median",
    0.95: "95 %",
    1.0: "largest",
}
_SHOWN_CATEGORIES = 12
_MANY_FEATURES = 40  # a longer table is folded


def identity(artifact: Artifact) -> Section:
    """Describe the source model and the graph that was converted from it."""
    source, graph = artifact.source, artifact.graph
    opsets = ", ".join(f"{domain} {found}" for domain, found in graph.opset.items())
    facts: list[tuple[str, Cell]] = [
        ("framework", Name(f"{source.framework} {source.version}")),
        *([("written by version", Name(source.written_by))] * bool(source.written_by)),
        ("objective", Name(source.objective)),
        ("classes, in the order of the probabilities", _list(source.classes)),
        ("trees", count(source.trees) if source.trees else "none"),
        ("features", count(len(artifact.features))),
        ("size of model.onnx", f"{count(graph.size_bytes)} bytes"),
        ("SHA-256 of model.onnx", Name(artifact.sha256)),
        ("converted by", Name(graph.converter)),
        ("ONNX operator sets", Name(opsets)),
        ("ONNX file format (IR)", str(graph.ir)),
        ("made for the features with hash", _spec_hash(artifact)),
        ("converted at", Name(artifact.created)),
    ]
    parameters = tuple(
        (Name(name), Name(str(found))) for name, found in source.parameters.items()
    )
    blocks: list[Block] = [
        Table(head=("what", "this model"), rows=tuple(facts), numbers=False)
    ]
    if parameters:
        blocks.append(
            Table(
                head=("parameter", "value"),
                rows=parameters,
                numbers=False,
                folded=True,
                caption=f"Parameters that were set ({len(parameters)})",
            )
        )
    return Section("What it is", tuple(blocks))


def _spec_hash(artifact: Artifact) -> Cell:
    if artifact.spec_hash is None:
        return "none: converted for no product, so it cannot be published"
    return Name(artifact.spec_hash)


def _list(found: Sequence[object], *, most: int = _SHOWN_CATEGORIES) -> Cell:
    more = f", and {count(len(found) - most)} more" if len(found) > most else ""
    return Name(", ".join(map(str, found[:most])) + more)


def training(artifact: Artifact) -> Section:
    """Describe the rows that it was trained on, as far as they are known."""
    found = artifact.training
    features = _features(artifact.features, found)
    blocks: list[Block] = [
        line("The rows it was trained on were not handed in.")
        if found is None
        else _origin(found, classes=artifact.source.classes),
        features,
    ]
    if found is not None:
        blocks.append(_scores(found))
    if artifact.categories:
        blocks.append(_categories(artifact.categories))
    return Section("What it was trained on", tuple(blocks))


def _origin(found: Training, *, classes: tuple[int | str, ...]) -> Line:
    if found.origin == "training":
        start = f"Its training rows: {count(found.rows)}"
    elif found.origin == "held out":
        start = (
            "The rows it was trained on are not described here. In their place stand "
            f"{count(found.rows)} {found.note}"
        )
    else:
        start = (
            "Which rows it was trained on is not known. In their place stand "
            f"{count(found.rows)} {found.note or 'rows that were handed in with it'}"
        )
    if found.frauds is None:
        return line(f"{start}.")
    part = share(found.frauds / max(found.rows, 1))
    return line(
        f"{start}. Of class ",
        Name(str(classes[-1])),
        f": {count(found.frauds)}, {part}.",
    )


def _features(names: tuple[str, ...], found: Training | None) -> Table:
    folded = len(names) > _MANY_FEATURES
    caption = f"Features, in order ({count(len(names))})"
    numbered = [(count(at), name) for at, name in enumerate(names)]
    if found is None:
        return Table(
            head=("position", "feature"),
            rows=tuple((at, Name(name)) for at, name in numbered),
            numbers=False,
            folded=folded,
            caption=caption,
        )
    levels = _levels(found)
    rows: list[tuple[Cell, ...]] = []
    for _, name in numbered:
        known = found.features.get(name)
        quantiles = known.quantiles if known is not None else ()
        rows.append(
            (
                Name(name),
                share(known.missing) if known is not None else UNKNOWN,
                *(value(quantiles[at]) if quantiles else UNKNOWN for at, _ in levels),
            )
        )
    head = ("feature", "missing", *(title for _, title in levels))
    return Table(head=head, rows=tuple(rows), folded=folded, caption=caption)


def _levels(found: Training) -> list[tuple[int, str]]:
    """Choose which of the recorded quantiles to show; return position and title."""
    return [
        (at, _SHOWN_LEVELS[level])
        for at, level in enumerate(found.quantiles)
        if level in _SHOWN_LEVELS
    ]


def _scores(found: Training) -> Table:
    return Table(
        head=("", *(f"{100 * level:g} %" for level in found.quantiles)),
        rows=(("score at most", *map(delta, found.score.quantiles)),)
        if found.score.quantiles
        else (("no score is a number", *[UNKNOWN] * len(found.quantiles)),),
        caption="Converted model's scores of these rows, by share of the rows",
    )


def _categories(known: dict[str, Vocabulary]) -> Table:
    rows = tuple(
        (
            Name(name),
            "position in the list" if found.codes else "the category itself",
            count(len(found.known)),
            _list(found.known),
        )
        for name, found in known.items()
    )
    return Table(
        head=("feature", "the feature holds", "how many", "categories"),
        rows=rows,
        numbers=False,
        caption="Categories that the model knows",
    )


def explanations(found: Explanation | None) -> Section:
    """State whether a score can be split into contributions of the features."""
    if found is None:
        text = "This folder has no explain.npz: single scores are not explained."
    elif found.trees is not None:
        text = (
            "explain.npz holds the trees with the weight of the rows that reached each "
            "node. From it, what each feature added to a margin is computed exactly "
            "(path-dependent Shapley values)."
        )
    elif found.linear is not None:
        origin = (
            "the mean of the sample rows"
            if found.linear.from_mean
            else "a row of zeros, after scaling where the model scales"
        )
        text = (
            "explain.npz holds the coefficients. From it, what each feature added to a "
            f"margin is computed exactly, measured from {origin}."
        )
    else:
        text = f"Single scores are not explained: {found.reason}"
    return Section("Explanations", (line(text),))

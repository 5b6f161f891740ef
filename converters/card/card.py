"""
Write the card of a converted model: its origin, its proof and its quality.

The content comes from the model's record, its measured quality and its explanation; the
card says where something is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from converters.card.card_document import (
    UNKNOWN,
    Block,
    Card,
    Cell,
    Line,
    Name,
    Picture,
    Points,
    Section,
    Table,
    Tile,
    bounds,
    count,
    delta,
    html_of,
    line,
    markdown_of,
    measure,
    share,
    speed,
    value,
)
from converters.card.card_pictures import histogram, reliability
from converters.card.quality import LEAST, LEAST_OF_A_CLASS
from converters.card.quality_record import (
    Group,
    GroupErrors,
    Quality,
    Rate,
    Segment,
    Sensitive,
)
from converters.model import Vocabulary
from tollgate.repository.atomic import replace_file
from tollgate.repository.models.artifact_file import (
    Artifact,
    Figures,
    Graph,
    Source,
    Trade,
    Training,
)

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
        identity(artifact),
        proof(artifact),
        *quality_sections(quality, trained_on=_trained_on(artifact)),
        timing(artifact),
        trades(artifact),
        training(artifact),
        explanations(explanation),
        limits(artifact, quality, explanation=explanation),
    ]
    return Card(
        title=line(
            Name(_source(artifact).framework), " ", Name(_source(artifact).objective)
        ),
        tiles=(
            _agreement(artifact),
            _ranking(quality, trained_on=_trained_on(artifact)),
            _speed(artifact),
            _size(artifact),
        ),
        sections=tuple(one for one in sections if one is not None),
    )


def _source(artifact: Artifact) -> Source:
    assert artifact.source is not None  # only parts of a record, for servers, lack it
    return artifact.source


def _graph(artifact: Artifact) -> Graph:
    assert artifact.graph is not None  # likewise
    return artifact.graph


def _agreement(artifact: Artifact) -> Tile:
    flips = max(one.flips for one in artifact.parity)
    farthest = max(one.max_delta for one in artifact.parity)
    passed = all(one.passed for one in artifact.parity)
    runtimes = len(artifact.parity)
    before = before_quantising(artifact)
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
    trees = _source(artifact).trees
    return Tile(
        title="Size",
        figure=f"{_graph(artifact).size_bytes / 1e3:,.0f} kB",
        detail=f"{count(trees)} trees" if trees else "no trees",
    )


# Write the card sections about the model, its training rows and its explanation.

_SHOWN_LEVELS = {
    0.0: "smallest",
    0.05: "5 %",
    0.5: "median",
    0.95: "95 %",
    1.0: "largest",
}
_SHOWN_CATEGORIES = 12
_MANY_FEATURES = 40  # a longer table is folded


def _calibration(artifact: Artifact) -> list[tuple[str, Cell]]:
    """Say how the score of an outlier detector became a probability."""
    found = artifact.calibration
    if found is None:
        return []
    scale = "logarithm of its raw score" if found.scale == "log" else "raw score"
    return [
        ("score", "1 - P(a normal row scores as high)"),
        ("calibrated by", f"its {scale}"),
        ("calibrated on", Name(f"{count(found.rows)} {found.source}")),
    ]


def identity(artifact: Artifact) -> Section:
    """Describe the source model and the graph that was converted from it."""
    source, graph = _source(artifact), _graph(artifact)
    opsets = ", ".join(f"{domain} {found}" for domain, found in graph.opset.items())
    facts: list[tuple[str, Cell]] = [
        ("framework", Name(f"{source.framework} {source.version}")),
        *([("written by version", Name(source.written_by))] * bool(source.written_by)),
        ("objective", Name(source.objective)),
        ("answer", "one number")
        if source.kind == "number"
        else ("classes, in the order of the probabilities", _list(source.classes)),
        ("trees", count(source.trees) if source.trees else "none"),
        ("features", count(len(artifact.features))),
        ("size of model.onnx", f"{count(graph.size_bytes)} bytes"),
        ("SHA-256 of model.onnx", Name(artifact.sha256)),
        *_calibration(artifact),
        ("converted by", Name(graph.converter)),
        ("ONNX operator sets", Name(opsets)),
        ("ONNX file format (IR)", str(graph.ir)),
        ("made for the features with hash", _spec_hash(artifact)),
        ("converted at", Name(artifact.created or UNKNOWN)),
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


def _list(found: Sequence[object]) -> Cell:
    most = _SHOWN_CATEGORIES
    more = f", and {count(len(found) - most)} more" if len(found) > most else ""
    return Name(", ".join(map(str, found[:most])) + more)


def training(artifact: Artifact) -> Section:
    """Describe the rows that it was trained on, as far as they are known."""
    found = artifact.training
    features = _features(artifact.features, found)
    blocks: list[Block] = [
        line("The rows it was trained on were not handed in.")
        if found is None
        else _origin(found, classes=_source(artifact).classes),
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
    scores = found.score.quantiles if found.score is not None else ()
    return Table(
        head=("", *(f"{100 * level:g} %" for level in found.quantiles)),
        rows=(("score at most", *map(delta, scores)),)
        if scores
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


# Write the card sections about proof, speed and the cost of making the model smaller.


def proof(artifact: Artifact) -> Section:
    """Show the difference between the converted model and its source, per runtime."""
    reports = artifact.parity
    head: tuple[Cell, ...] = ("", *(Name(one.runtime) for one in reports))
    thresholds = ", ".join(f"{one:g}" for one in reports[0].thresholds) or "none"
    number = reports[0].unit is not None
    what = "number, for its size" if number else "probability"
    titles = {
        "rows compared": [count(one.rows) for one in reports],
        f"decisions that flip, at {thresholds}": [count(one.flips) for one in reports],
        f"largest difference of a {what}": [delta(r.max_delta) for r in reports],
        "mean difference": [delta(one.mean_delta) for one in reports],
        "alone against in a batch": [delta(one.batch_delta) for one in reports],
        "rows asked alone as well": [
            count(one.rows if one.alone is None else one.alone) for one in reports
        ],
        "allowed difference": [delta(one.tolerance) for one in reports],
        "rows that the source itself refuses": [count(r.unanswered) for r in reports],
        "agrees": ["yes" if one.passed else "NO" for one in reports],
    }
    rows = tuple((title, *cells) for title, cells in titles.items())
    blocks: list[Block] = [
        line(_compared(artifact)),
        Table(head=head, rows=rows),
    ]
    oracle = artifact.oracle
    if oracle is not None:
        for text in oracle.lines:
            blocks.append(line(f"{text[0].upper()}{text[1:]}."))
        for text in oracle.warnings:
            blocks.append(line(f"Not covered: {text}."))
    kinds = reports[0].kinds
    if kinds:
        words = ", ".join(f"{count(rows)} {kind}" for kind, rows in kinds.items())
        blocks.append(line(f"Rows by kind: {words}."))
    if artifact.targets:
        blocks.append(
            line("Proven for Triton ", Name(", ".join(artifact.targets)), ".")
        )
    return Section("Proof", tuple(blocks))


def before_quantising(artifact: Artifact) -> bool:
    """Return whether the proof covers a model that int8 arithmetic has replaced."""
    return any(one.kind == "quantize" for one in artifact.trades)


def _compared(artifact: Artifact) -> str:
    text = "The converted model was compared with its source on the same rows."
    if any(one.kind != "quantize" for one in artifact.trades):
        text += " Its source is the model after it was made smaller."
    if before_quantising(artifact):
        text += (
            " That was before its weights were quantised: the served model is not "
            "proven, but judged under Made smaller."
        )
    return text


def timing(artifact: Artifact) -> Section:
    """Show µs per row."""
    found = artifact.us_per_row
    if not found:
        return Section("Speed", (line("It was not measured."),))
    rows = tuple(
        (count(rows), speed(us), speed(us * rows)) for rows, us in sorted(found.items())
    )
    return Section(
        "Speed",
        (
            Table(head=("rows of a batch", "µs per row", "µs per batch"), rows=rows),
            line(
                "The fastest of many runs on one thread of the machine that converted "
                "it, in onnxruntime alone. Another machine has other figures, and a "
                "server adds its own time."
            ),
        ),
    )


def trades(artifact: Artifact) -> Section | None:
    """Show the cost and gain of making the model smaller; None if it was not done."""
    if not artifact.trades:
        return None
    blocks: list[Block] = []
    for one in artifact.trades:
        blocks.append(line(Name(one.kind), ": ", Name(one.detail), _lost(one)))
        blocks.append(_before_and_after(one.before, one.after))
    text = "Before and after were measured in one run, in turns."
    allowed = artifact.allowed
    if allowed is not None:
        text += (
            f" Allowed were other decisions for {share(allowed.flips)} of the rows, an "
            f"AUC lower by {allowed.auc_loss:g} and an average precision lower by "
            f"{allowed.ap_loss:g}."
        )
    blocks.append(line(text))
    return Section("Made smaller", tuple(blocks))


def _lost(trade: Trade) -> str:
    return (
        f". On {count(trade.rows)} rows, {count(trade.flagged)} of them at or above "
        f"the lowest threshold before, {count(trade.flips)} decisions changed "
        f"({share(trade.flips / max(trade.rows, 1))} of the rows). A probability moved "
        f"by {delta(trade.max_delta)} at most, and by {delta(trade.batch_delta)} "
        "between alone and in a batch."
    )


def _before_and_after(before: Figures, after: Figures) -> Table:
    rows = [
        ("AUC", measure(before.auc), measure(after.auc), UNKNOWN),
        (
            "average precision",
            measure(before.average_precision),
            measure(after.average_precision),
            UNKNOWN,
        ),
        (
            "bytes",
            count(before.size_bytes),
            count(after.size_bytes),
            _times(after.size_bytes, before.size_bytes),
        ),
    ]
    for size in sorted(set(before.us_per_row) & set(after.us_per_row)):
        first, second = before.us_per_row[size], after.us_per_row[size]
        title = f"µs per row in batches of {size}"
        rows.append((title, speed(first), speed(second), _times(second, first)))
    return Table(head=("", "before", "after", "after / before"), rows=tuple(rows))


def _times(after: float, before: float) -> str:
    return f"{after / before:.2f}" if before else UNKNOWN


# Write the card section about errors by group of a sensitive attribute.

_FEW = "too few"
_LOW_RATIO = 0.8  # US enforcement agencies' four-fifths rule of thumb


def group_sections(quality: Quality) -> tuple[Section, ...]:
    """Show errors by sensitive attribute; list the attributes without data."""
    if not (quality.sensitive or quality.unreported):
        return ()
    first, last = quality.levels.names[0], quality.levels.names[-1]
    blocks: list[Block] = []
    if quality.sensitive:
        words = (
            "None of these is a feature. By the thresholds on the score alone, without "
            f"the policy's rules. False {last}: share of the rows of the other class "
            f"that reach {last}. False {first}: share of the positive rows that end in "
            f"{first}. Each with its 95 % interval; fewer than {LEAST} rows give no "
            "share."
        )
        blocks.append(line(words))
    for one in quality.sensitive:
        ratios = "; ratios are to ", Name(one.reference), ":"
        blocks += [line("By ", Name(one.column), *ratios), _table(one, quality)]
        blocks += _far_apart(one, first)
    if quality.unreported:
        names = [piece for one in quality.unreported for piece in (Name(one), ", ")]
        words = "The policy names as sensitive, and nobody handed in: "
        blocks.append(line(words, *names[:-1], "."))
    return (Section("Errors by sensitive attribute", tuple(blocks)),)


def _table(found: Sensitive, quality: Quality) -> Table:
    first, last = quality.levels.names[0], quality.levels.names[-1]
    head = (
        *("value", "rows", "positives", first, "95 %"),
        *("ratio", "95 %"),
        *(f"false {last}", "95 %", f"false {first}", "95 %", "AUC", "95 %"),
    )
    return Table(head=head, rows=tuple(_row(one, found) for one in found.groups))


def _row(one: GroupErrors, found: Sensitive) -> tuple[Cell, ...]:
    same = one.name == found.reference
    return (
        Name(one.name),
        count(one.rows),
        count(one.positives),
        *_rate(one.approved),
        *(("1", "") if same else _ratio(one.ratio)),
        *_rate(one.false_declines),
        *_rate(one.false_approvals),
        _FEW if one.auc is None else measure(one.auc),
        UNKNOWN if one.auc is None else bounds(one.interval),
    )


def _rate(found: Rate | None) -> tuple[str, str]:
    if found is None:
        return _FEW, UNKNOWN
    return share(found.share), f"{share(found.low)} to {share(found.high)}"


def _ratio(found: Rate | None) -> tuple[str, str]:
    if found is None:
        return _FEW, UNKNOWN
    return f"{found.share:.3f}", f"{found.low:.3f} to {found.high:.3f}"


def _far_apart(found: Sensitive, first: str) -> list[Block]:
    """List the groups whose share is far below the reference's."""
    names: list[Cell] = []
    for one in found.groups:
        if one.ratio is not None and one.ratio.share < _LOW_RATIO:
            names += [Name(one.name), ", "]
    if not names:
        return []
    words = f"With less than four fifths of the share of {first} that "
    return [line(words, Name(found.reference), " has: ", *names[:-1], ".")]


_TOO_GOOD = 0.99995  # shown as 1.0000


def is_perfect(quality: Quality) -> bool:
    """Return whether the AUC is shown as 1.0000, which real outcomes hardly allow."""
    return quality.overall.auc is not None and quality.overall.auc >= _TOO_GOOD


def quality_sections(
    quality: Quality | None, *, trained_on: bool
) -> tuple[Section, ...]:
    """Show quality overall and by segment, or that nothing could be evaluated."""
    if quality is None and trained_on:
        nothing = line(
            "The only labelled rows are those it was trained on. They say nothing "
            "about new ones, so how good it is was not measured."
        )
        return (Section("Quality", (nothing,)),)
    if quality is None:
        nothing = line(
            "No labels were handed in: how good it is was not measured. That it "
            "answers as its source says nothing about it."
        )
        return (Section("Quality", (nothing,)),)
    return (_overall(quality), *_segments(quality), *group_sections(quality))


def _overall(quality: Quality) -> Section:
    found = quality.overall
    note = quality.note or "rows that were handed in"
    left_out = (
        f" {count(quality.unanswered)} rows without a usable answer are left out."
        if quality.unanswered
        else ""
    )
    blocks: list[Block] = [
        line(f"Judged on {count(found.rows)} labelled rows: {note}.{left_out}")
    ]
    if is_perfect(quality):
        words = (
            "An AUC of 1.0000 is suspicious: outcomes are hardly ever known that well. "
            "Look for a feature that gives the outcome away, and for rows that it was "
            "trained on."
        )
        blocks.append(line(words))
    if found.reason:
        blocks.append(line(f"Its ranking cannot be evaluated: {found.reason}."))
    elif quality.positive is None:
        blocks.append(_of_many(found))
    else:
        blocks.append(_of_two(found, positive=quality.positive))
    if quality.positive is not None:
        blocks += _decisions(quality)
    if quality.bins:
        blocks += _by_score(quality)
    return Section("Quality", tuple(blocks))


def _of_two(found: Group, *, positive: int | str) -> Table:
    return Table(
        head=("measure", "value"),
        rows=(
            ("positive class", Name(str(positive))),
            ("positive rows", count(found.positives)),
            ("share of positives", share((found.positives or 0) / found.rows)),
            ("AUC", measure(found.auc)),
            ("AUC, 95 % interval (DeLong)", bounds(found.interval)),
            ("average precision", measure(found.average_precision)),
            ("Brier score", measure(found.brier)),
            ("log loss", measure(found.log_loss)),
        ),
    )


def _of_many(found: Group) -> Table:
    return Table(
        head=("measure", "value"),
        rows=(
            ("AUC, mean of each class against the rest", measure(found.auc)),
            ("log loss", measure(found.log_loss)),
        ),
    )


def _decisions(quality: Quality) -> list[Block]:
    found = quality.overall
    shares = tuple((name, share(part)) for name, part in found.decisions.items())
    tables: list[Block] = [
        Table(
            head=("decision", "share of the rows"),
            rows=shares,
            caption="By the thresholds on the score alone, without the policy's rules",
        )
    ]
    if found.at_thresholds:
        rows = tuple(
            (
                f"{one.name} (score {one.threshold:g} or above)",
                count(one.rows),
                share(one.precision),
                share(one.recall),
            )
            for one in found.at_thresholds
        )
        tables.append(Table(head=("from", "rows", "precision", "recall"), rows=rows))
    return tables


def _by_score(quality: Quality) -> list[Block]:
    rows = tuple(
        (
            f"{one.low:g} to {one.high:g}",
            count(one.rows),
            count(one.positives),
            share(one.positives / one.rows) if one.rows else UNKNOWN,
            measure(one.mean_score),
        )
        for one in quality.bins
    )
    return [
        Picture(
            svgs=(histogram(quality), reliability(quality)),
            caption="Left: rows per tenth of the score, the positive class in orange, "
            "thresholds dashed. Right: how many of the rows of each tenth are "
            "positive, with its 95 % interval; on the diagonal a score is a "
            "probability.",
        ),
        Table(
            head=("score", "rows", "positives", "share", "mean score"),
            rows=rows,
            folded=True,
            caption="Rows, positives and mean score by tenth of the score",
        ),
    ]


def _segments(quality: Quality) -> tuple[Section, ...]:
    if not quality.segments:
        return ()
    blocks: list[Block] = [
        line(
            f"A segment with fewer than {LEAST_OF_A_CLASS} rows of a class gives no "
            "figure: chance would make it."
        )
    ]
    for one in quality.segments:
        blocks.append(line("By ", Name(one.column), ":"))
        many = quality.positive is None
        blocks.append(_segment_of_many(one) if many else _segment_of_two(one, quality))
    return (Section("Quality by segment", tuple(blocks)),)


def _segment_of_two(segment: Segment, quality: Quality) -> Table:
    last = len(quality.levels.thresholds) - 1
    top = quality.levels.names[-1]
    rows: list[tuple[Cell, ...]] = []
    for one in segment.groups:
        at = one.at_thresholds[last] if one.at_thresholds else None
        rows.append(
            (
                Name(one.name),
                count(one.rows),
                count(one.positives),
                *(share(one.decisions[name]) for name in quality.levels.names[1:]),
                measure(one.auc) if not one.reason else "too few",
                bounds(one.interval),
                share(at.precision) if at else UNKNOWN,
                share(at.recall) if at else UNKNOWN,
            )
        )
    head = (
        *("value", "rows", "positives", *quality.levels.names[1:], "AUC", "95 %"),
        *(f"precision at {top}", f"recall at {top}"),
    )
    return Table(head=head, rows=tuple(rows))


def _segment_of_many(segment: Segment) -> Table:
    rows = tuple(
        (
            Name(one.name),
            count(one.rows),
            measure(one.auc) if not one.reason else "too few",
            measure(one.log_loss),
        )
        for one in segment.groups
    )
    return Table(head=("value", "rows", "mean AUC", "log loss"), rows=rows)


# Write the card section that lists the limits of its figures.

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
    source = _source(artifact)
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

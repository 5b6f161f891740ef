"""A card says what record and figures say, in two forms, and trusts no name."""

from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from markdown_it import MarkdownIt

from converters.artifact import Artifact, Graph, Source, describe_training
from converters.card import write_card
from converters.card_picture import histogram, wilson
from converters.model import Vocabulary
from converters.quality import measure_quality
from converters.quality_record import Levels
from converters.trade import Figures, Gate, Trade
from tollgate.explanation import Explanation
from tollgate.repository.parity import Disagreement, ParityReport

POLICY = Levels(names=("approve", "review", "decline"), thresholds=(0.35, 0.8))
HOSTILE = (
    "<script>alert(1)</script>",
    "\" onmouseover='alert(2)",
    "&lt;b&gt;",
    "a|b",
    "a\\|b",
    "`code` ``more``",
    "**loud** _soft_ ~~gone~~",
    "[here](http://example.org)",
    "![picture](http://example.org/x.png)",
    "http://example.org www.example.org me@example.org",
    "<!-- no end",
    "two\nlines\r\n\n# and a title",
    "right\u202eto left\u200b",
    " blanks ",
    "$x$ #1 1. - +",
    "]]>",
    "half \ud800 a pair",
    "",
)
VOID = {"meta", "line", "circle", "rect"}


def report(**changed):
    """Make a proof that passed."""
    fields = {
        "runtime": "onnxruntime 1.19.2",
        "rows": 12_345,
        "max_delta": 6.25e-8,
        "flips": 0,
        "batch_delta": 0.0,
        "thresholds": (0.35, 0.8),
        "tolerance": 1e-5,
        "worst": (Disagreement(row=3, kind="split", source=0.1, converted=0.1),),
        "mean_delta": 3.5e-9,
        "unanswered": 7,
        "kinds": {"sample": 345, "split": 12_000},
    }
    return ParityReport(**{**fields, **changed})


def record(names=("amount", "risk", "empty"), **changed):
    """Make a record of as many features as there are names."""
    chance = np.random.default_rng(0)
    features = chance.normal(100, 30, (200, len(names))).astype(np.float32)
    features[:50, 1] = np.nan
    features[:, -1] = np.nan
    training = describe_training(
        features,
        names=names,
        label=(np.arange(200) < 20).astype(int),
        score=chance.random(200).astype(np.float32),
    )
    fields = {
        "sha256": "0123456789abcdef" * 4,
        "spec_hash": "00c36f8242c6fa06",
        "features": names,
        "source": Source(
            framework="xgboost",
            version="3.2.0",
            objective="binary:logistic",
            classes=(0, 1),
            trees=123,
            parameters={"max_depth": 6},
        ),
        "graph": Graph(
            converter="onnxmltools 1.16.0",
            opset={"ai.onnx": 15},
            ir=8,
            size_bytes=1_234_567,
        ),
        "parity": (report(), report(runtime="onnxruntime 1.27.0", rows=12_346)),
        "training": training,
        "created": "2018-08-01T00:00:00Z",
        "targets": ("24.10", "26.07"),
        "us_per_row": {1: 12.34, 8: 5.67, 32: 1.89},
    }
    return Artifact(**{**fields, **changed})


def judged(**segments):
    """Judge made-up scores of 1,000 rows."""
    chance = np.random.default_rng(1)
    label = (chance.random(1000) < 0.2).astype(int)
    score = 1 / (1 + np.exp(-(chance.normal(size=1000) + 2 * label - 2)))
    found = np.stack([1 - score, score], axis=1)
    return measure_quality(
        label, found, classes=(0, 1), levels=POLICY, segments=segments, note="new rows"
    )


class Page(HTMLParser):
    """The tables and text of a page; fails where an element is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.text, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data


def markdown_tables(text):
    """Read tables with a parser that knows nothing of ours."""
    tables = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "inline" and token.level >= 4 and tables:
            kinds = {child.type for child in token.children}
            assert kinds <= {"text", "code_inline"}, token.content
            cell = "".join(child.content for child in token.children)
            tables[-1][-1].append(cell)
    return tables


@pytest.fixture
def written(tmp_path):
    """Write a card; return Markdown, HTML and the parsed page."""

    def write(*arguments, **named):
        markdown, html = write_card(tmp_path, *arguments, **named)
        assert [path.name for path in (markdown, html)] == ["card.md", "card.html"]
        text, page = markdown.read_text("utf-8"), html.read_text("utf-8")
        return text, page, Page(page)

    return write


def facts(page):
    """Return first cell -> the other cells, of all tables."""
    return {row[0]: row[1:] for table in page.tables for row in table}


def test_figures_of_the_card_are_those_of_the_record(written):
    """Each is read back out of the page and compared with where it comes from."""
    artifact = record()
    _, _, page = written(artifact)
    found = facts(page)
    assert found["SHA-256 of model.onnx"] == [artifact.sha256]
    assert found["framework"] == ["xgboost 3.2.0"]
    assert found["trees"] == ["123"]
    assert found["size of model.onnx"] == ["1,234,567 bytes"]
    assert found["rows compared"] == ["12,345", "12,346"]
    assert found["rows that the source itself refuses"] == ["7", "7"]
    farthest = found["largest difference of a probability"]
    assert [float(one) for one in farthest] == [6.25e-8, 6.25e-8]
    assert found["agrees"] == ["yes", "yes"]
    for rows, us in artifact.us_per_row.items():
        per_row, per_batch = map(float, found[str(rows)])
        assert per_row == pytest.approx(us, abs=0.005)
        assert per_batch == pytest.approx(us * rows, abs=0.005)
    training = artifact.training
    assert "200. Of class" in " ".join(page.text)
    for name in ("amount", "risk"):
        missing, *quantiles = found[name]
        known = training.features[name]
        assert float(missing.removesuffix(" %")) == 100 * known.missing
        wanted = [known.quantiles[at] for at in (0, 2, 4, 6, 8)]
        assert [float(one) for one in quantiles] == pytest.approx(wanted, rel=1e-5)
    assert found["empty"] == ["100 %", *["n/a"] * 5]


def test_figures_of_the_card_are_those_of_the_quality(written):
    """Overall, at the thresholds, per segment and per bin."""
    quality = judged(country=["DE" if row % 3 else "FR" for row in range(1000)])
    _, _, page = written(record(), quality=quality)
    found, overall = facts(page), quality.overall
    assert float(found["AUC"][0]) == pytest.approx(overall.auc, abs=5e-5)
    low, high = found["AUC, 95 % interval (DeLong)"][0].split(" to ")
    assert (float(low), float(high)) == pytest.approx(overall.interval, abs=5e-5)
    for title, value in (
        ("average precision", overall.average_precision),
        ("Brier score", overall.brier),
        ("log loss", overall.log_loss),
    ):
        assert float(found[title][0]) == pytest.approx(value, abs=5e-5)
    for one in overall.at_thresholds:
        rows, *shares = found[f"{one.name} (score {one.threshold:g} or above)"]
        assert int(rows) == one.rows
        wanted = [100 * one.precision, 100 * one.recall]
        read = [float(share.removesuffix(" %")) for share in shares]
        assert read == pytest.approx(wanted, rel=1e-3)
    for group in quality.segments[0].groups:
        rows, positives, *_, auc, _, _, _ = found[group.name]
        assert (int(rows), int(positives)) == (group.rows, group.positives)
        assert float(auc) == pytest.approx(group.auc, abs=5e-5)
    for one in quality.bins:
        rows, positives, *_ = found[f"{one.low:g} to {one.high:g}"]
        assert (int(rows), int(positives)) == (one.rows, one.positives)


def test_both_forms_have_the_same_tables(written):
    """Markdown and page are one card; every row has a cell per column."""
    quality = judged(kind=["a" if row % 2 else "b" for row in range(1000)])
    artifact = record(categories={"risk": Vocabulary(codes=True, known=("x", "y"))})
    markdown, _, page = written(artifact, quality=quality)
    assert markdown_tables(markdown) == page.tables
    assert len(page.tables) > 8
    for table in page.tables:
        assert {len(row) for row in table} == {len(table[0])}


def shown(name):
    """What a reader sees of a name: invisible characters written out."""
    name = name.replace("\ud800", "\\ud800").replace("\u202e", "\\u202e")
    name = name.replace("\u200b", "\\u200b")
    return name.replace("\n", "\\n").replace("\r", "\\r")


def test_hostile_names_are_shown_and_do_nothing(written):
    """Features, classes, parameters and segments that would be markup are text."""
    artifact = record(
        names=HOSTILE,
        source=msgspec.structs.replace(
            record().source,
            framework=HOSTILE[0],
            objective=HOSTILE[4],
            classes=HOSTILE[:2],
            parameters=dict.fromkeys(HOSTILE, HOSTILE[1]),
        ),
        categories={HOSTILE[0]: Vocabulary(codes=False, known=HOSTILE)},
        targets=(HOSTILE[0],),
        training=msgspec.structs.replace(
            record(names=HOSTILE).training, note=HOSTILE[9], origin="sample"
        ),
    )
    quality = judged(
        **{HOSTILE[0]: [HOSTILE[row % len(HOSTILE)] for row in range(1000)]}
    )
    markdown, html, page = written(
        artifact, quality=msgspec.structs.replace(quality, note=HOSTILE[7])
    )
    assert "<script" not in html
    allowed = {"class", "scope", "role", "viewbox", "lang", "charset", "content"}
    drawn = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"}
    used = {name for _, name, _ in page.attributes}
    assert used <= allowed | drawn | {"name", "http-equiv", "text-anchor"}
    read = markdown_tables(markdown)
    (of_page,) = [one for one in page.tables if one[0][:2] == ["feature", "missing"]]
    (of_text,) = [one for one in read if one[0][:2] == ["feature", "missing"]]
    assert [row[0] for row in of_page[1:]] == [shown(name) for name in HOSTILE]
    for name, row in zip(HOSTILE, of_text[1:], strict=True):
        assert row[0] == shown(name).strip()
        assert len(row) == len(of_text[0])
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    kinds = {child.type for one in tokens for child in one.children or ()}
    assert kinds <= {"text", "code_inline", "strong_open", "strong_close"}
    assert "html_block" not in {one.type for one in tokens}
    headings = [one for one in tokens if one.type == "heading_open"]
    assert len(headings) == markdown.count("\n## ") + 1


def test_a_page_loads_nothing_and_runs_nothing(written):
    """No address, no script, no style from outside; the policy says so too."""
    _, html, page = written(record(), quality=judged())
    for word in ("http:", "https:", "src=", "href=", "url(", "@import", "<script"):
        assert word not in html
    policies = [value for _, name, value in page.attributes if name == "content"]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policies


def test_long_names_are_cut(written):
    """A name of 5,000 characters makes no card of 5,000 columns."""
    markdown, html, _ = written(record(names=("x" * 5000, "b", "c")))
    assert "x" * 120 + "…" in markdown
    assert "x" * 121 not in markdown
    assert "x" * 121 not in html


def test_what_was_not_handed_in_is_said(written):
    """Without rows, labels, speed or explanation there are sentences, not figures."""
    artifact = record(training=None, us_per_row={}, spec_hash=None, targets=())
    markdown, _, _ = written(artifact)
    for words in (
        "The rows it was trained on were not handed in.",
        "No labels were handed in",
        "It was not measured.",
        "converted for no product, so it cannot be published",
        "This folder has no explain.npz",
        "Which values its features had in training is not known.",
        "How good it is, and for whom, was not measured.",
    ):
        assert words in markdown
    assert "Made smaller" not in markdown
    assert "nan" not in markdown.lower().replace("tollgate", "")


def test_rows_of_unknown_origin_are_not_called_training_rows(written):
    """Only what is known to be the training rows is called so."""
    known = record()
    markdown, _, _ = written(known)
    assert "Its training rows: 200" in markdown
    training = msgspec.structs.replace(
        known.training, origin="sample", frauds=None, note="rows of x.csv"
    )
    markdown, _, _ = written(record(training=training))
    assert "Which rows it was trained on is not known." in markdown
    assert "200 rows of x.csv." in markdown
    assert "Its training rows" not in markdown
    assert "Of class" not in markdown


def test_limits_name_small_segments_and_empty_features(written):
    """What the figures do not cover is listed by name."""
    place = ["large" if row < 990 else "small" for row in range(1000)]
    quality = judged(place=place)
    (small,) = (one for one in quality.segments[0].groups if one.name == "small")
    markdown, _, page = written(record(), quality=quality)
    assert f"`place = small`: {small.reason}." in markdown
    assert "Without any value in those rows: `empty`." in markdown
    assert "Never missing in those rows: `amount`." in markdown
    assert facts(page)["small"][-4:] == ["too few", "n/a", "n/a", "n/a"]


def test_a_trade_stands_with_its_figures(written):
    """Before, after and their ratio; the limits say that answers have changed."""
    trade = Trade(
        kind="prune",
        detail="at most 40 trees",
        rows=2000,
        flips=3,
        max_delta=0.0125,
        flagged=50,
        before=Figures(0.91, 0.71, {1: 10.0, 32: 4.0}, 1000),
        after=Figures(0.9, 0.7, {1: 5.0, 32: 1.0}, 400),
    )
    markdown, _, page = written(record(trades=(trade,), allowed=Gate(flips=0.002)))
    (table,) = (one for one in page.tables if "before" in one[0])
    assert [row[1:] for row in table[1:]] == [
        ["0.9100", "0.9000", "n/a"],
        ["0.7100", "0.7000", "n/a"],
        ["1,000", "400", "0.40"],
        ["10.00", "5.00", "0.50"],
        ["4.00", "1.00", "0.25"],
    ]
    assert "On 2,000 rows, 50 of them at or above the lowest" in markdown
    assert "3 decisions changed (0.15 % of the rows)" in markdown
    assert "moved by 0.0125 at most" in markdown
    assert "Allowed were other decisions for 0.2 % of the rows" in markdown
    assert "Its source is the model after it was made smaller." in markdown
    assert "does not answer as the model that was handed in" in markdown


def test_a_quantised_model_is_not_called_proven(written):
    """The proof is of the graph before; tile, section and limits say so."""
    figures = Figures(0.9, 0.7, {1: 5.0}, 400)
    trade = Trade(
        kind="quantize",
        detail="int8, static",
        rows=100,
        flips=0,
        max_delta=0.01,
        before=figures,
        after=figures,
    )
    markdown, html, _ = written(record(trades=(trade,)))
    assert "* Before quantising, against its source: **agrees**" in markdown
    assert "the served model is not proven" in markdown
    assert "targets are of the model before it was quantised" in markdown
    assert "Its source is the model after" not in markdown
    assert "tile good" not in html


def test_a_failed_proof_is_shown_as_one(written):
    """One runtime that differs is enough for the first tile."""
    bad = report(runtime="onnxruntime 9", flips=2, max_delta=0.25)
    _, html, page = written(record(parity=(report(), bad)))
    assert facts(page)["agrees"] == ["yes", "NO"]
    assert '<div class="tile bad">' in html
    assert "2 flips, at most 0.25 apart, in 2 runtimes" in html


def test_several_classes_have_a_card_without_thresholds(written):
    """Mean AUC and log loss; nothing about a positive class."""
    chance = np.random.default_rng(2)
    label = chance.integers(0, 3, 600)
    weight = np.exp(chance.normal(size=(600, 3)) + np.eye(3)[label])
    quality = measure_quality(
        label,
        weight / weight.sum(axis=1, keepdims=True),
        classes=("a", "b", "c"),
        segments={"part": ["x" if row % 2 else "y" for row in range(600)]},
    )
    source = msgspec.structs.replace(record().source, classes=("a", "b", "c"))
    markdown, html, page = written(record(source=source), quality=quality)
    found = facts(page)["AUC, mean of each class against the rest"]
    assert float(found[0]) == pytest.approx(quality.overall.auc, abs=5e-5)
    assert "<svg" not in html
    assert "positive" not in markdown


@pytest.mark.parametrize(
    ("reason", "words"),
    [("a network is no sum over features", "not explained: a network is no sum")],
)
def test_why_nothing_is_explained_is_said(written, reason, words):
    """The reason in explain.npz stands in the card."""
    explanation = Explanation(
        features=("amount", "risk", "empty"),
        classes=(0, 1),
        base=np.zeros(2),
        reason=reason,
    )
    markdown, _, _ = written(record(), explanation=explanation)
    assert words in markdown
    assert "No exact explanation of a single score can be given." in markdown


@pytest.mark.parametrize(
    ("hits", "rows", "low", "high"),
    # z² / (n + z²) = 3.841459 / 13.841459 for none of 10
    [(0, 10, 0.0, 0.2775328), (5, 10, 0.2365931, 0.7634069), (10, 10, 0.7224672, 1.0)],
)
def test_bars_of_the_picture_are_wilsons_interval(hits, rows, low, high):
    """Also where none or all of the rows are positive."""
    assert wilson(hits, rows) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "marks"),
    [(1, ["1", "10"]), (100, ["1", "10", "100"]), (20_000, ["1k", "10k", "100k"])],
)
def test_the_histogram_has_room_for_every_count(rows, marks):
    """The axis ends at a power of ten that no bar exceeds; one row is a bar too."""
    score = np.full(rows + 1, 0.05)
    score[-1] = 0.95
    label = np.zeros(rows + 1, dtype=int)
    label[-1] = 1
    found = np.stack([1 - score, score], axis=1)
    drawn = ElementTree.fromstring(
        histogram(measure_quality(label, found, classes=(0, 1)))
    )
    texts = [one.text for one in drawn.iter("text")]
    assert set(marks) <= set(texts)
    bars = {one.get("class"): [] for one in drawn.iter("rect")}
    for one in drawn.iter("rect"):
        bars[one.get("class")].append(float(one.get("height")))
    assert 0 < bars["two"][-1] <= bars["one"][0] <= 182
    assert sum(height > 0 for height in bars["one"] + bars["two"]) == 2

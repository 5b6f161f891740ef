"""A card is the same as Markdown and as a page; both trust no name."""

import msgspec
from markdown_it import MarkdownIt

from converters.model import Vocabulary
from tests.support.converters.model_cards import judged, record

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

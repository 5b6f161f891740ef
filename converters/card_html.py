"""Render a model card as one HTML page that loads no resource and runs no script."""

from __future__ import annotations

from html import escape

from converters.card_document import (
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
    visible,
)

# Allow the page its own style and nothing else, whatever a name contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbfa; --raised: #ffffff; --ink: #1d2126; --soft: #5c6570;
  --rule: #dde1e5; --one: #2f6f9f; --two: #c4582c; --good: #2c7a4b; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15181c; --raised: #1d2126; --ink: #e6e8ea; --soft: #9aa4ae;
    --rule: #343a41; --one: #7db4de; --two: #ee9568; --good: #77c796; --bad: #ff897d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem;
  background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
header p { margin: 0; color: var(--soft); }
h1 { margin: .1rem 0 1.25rem; font-size: 1.75rem; line-height: 1.25; }
h1 code { font-size: .9em; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.2rem; }
p, ul { margin: .75rem 0; max-width: 46rem; }
li { margin: .35rem 0; }
code {
  font: .88em/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  overflow-wrap: anywhere;
}
.tiles {
  display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
}
.tile {
  padding: .8rem 1rem; border: 1px solid var(--rule); border-radius: .5rem;
  background: var(--raised);
}
.tile dt { color: var(--soft); font-size: .85rem; }
.tile dd { margin: 0; }
.tile .figure { font-size: 1.45rem; font-weight: 600; line-height: 1.35; }
.tile .detail { color: var(--soft); font-size: .85rem; line-height: 1.4; }
.good .figure { color: var(--good); }
.bad .figure { color: var(--bad); }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .92rem; }
caption {
  padding-bottom: .35rem; text-align: left; color: var(--soft); font-size: .88rem;
}
th, td {
  padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--rule);
  text-align: left; vertical-align: top;
}
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 500; }
.numbers td, .numbers thead th:not(:first-child) {
  text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
}
.numbers tbody th { min-width: 9rem; }
.numbers td { min-width: 3.5rem; }
summary { cursor: pointer; color: var(--one); }
figure { margin: 1rem 0; }
.drawings { display: flex; flex-wrap: wrap; gap: 1rem 2rem; }
.drawings svg { flex: 1 1 18rem; max-width: 28rem; height: auto; }
figcaption { color: var(--soft); font-size: .88rem; max-width: 46rem; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .axis { stroke: var(--rule); fill: none; }
svg .one { fill: var(--one); } svg .two { fill: var(--two); }
svg .range { stroke: var(--two); stroke-width: 1.5; }
svg .cut { stroke: var(--ink); stroke-dasharray: 3 3; opacity: .6; }
@media print { body { max-width: none; padding: 0; } .tile { break-inside: avoid; } }
"""


def html_of(card: Card) -> str:
    """Return a card as one HTML document."""
    title = "".join(_text(piece) for piece in card.title.pieces)
    tiles = "\n".join(map(_tile, card.tiles))
    sections = "\n".join(map(_section, card.sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Model card: {title}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<p>Model card</p>
<h1>{_line(card.title)}</h1>
<dl class="tiles">
{tiles}
</dl>
</header>
<main>
{sections}
</main>
</body>
</html>
"""


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile {tile.mood}"><dt>{_text(tile.title)}</dt>'
        f'<dd class="figure">{_text(tile.figure)}</dd>'
        f'<dd class="detail">{_text(tile.detail)}</dd></div>'
    )


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return f"<section>\n<h2>{_text(section.title)}</h2>\n{blocks}\n</section>"


def _block(block: Block) -> str:
    if isinstance(block, Line):
        return f"<p>{_line(block)}</p>"
    if isinstance(block, Points):
        points = "\n".join(f"<li>{_line(one)}</li>" for one in block.lines)
        return f"<ul>\n{points}\n</ul>"
    if isinstance(block, Picture):
        caption = f"<figcaption>{_text(block.caption)}</figcaption>"
        drawings = f'<div class="drawings">{"".join(block.svgs)}</div>'
        return f"<figure>{drawings}{caption}</figure>"
    return _table(block)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_cell(one)}</th>' for one in table.head)
    rows = "\n".join(map(_row, table.rows))
    kind = "numbers" if table.numbers else "words"
    caption = ""
    if table.caption and not table.folded:
        caption = f"<caption>{_text(table.caption)}</caption>"
    found = (
        f'<div class="scroll"><table class="{kind}">{caption}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )
    if not table.folded:
        return found
    return f"<details><summary>{_text(table.caption)}</summary>\n{found}\n</details>"


def _row(cells: tuple[Cell, ...]) -> str:
    first, *others = cells
    columns = "".join(f"<td>{_cell(one)}</td>" for one in others)
    return f'<tr><th scope="row">{_cell(first)}</th>{columns}</tr>'


def _line(found: Line) -> str:
    return "".join(_cell(piece) for piece in found.pieces)


def _cell(cell: Cell) -> str:
    text = _text(cell)
    return f"<code>{text}</code>" if isinstance(cell, Name) else text


def _text(cell: Cell) -> str:
    return escape(cell.shown if isinstance(cell, Name) else visible(cell))

"""The documentation site: each page is found, links lead somewhere, nothing is lost."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import docs_reference
import docs_site
import msgspec
import pytest
import typer
from markdown_it import MarkdownIt

from tollgate.cli.app import app
from tollgate.schema import Degraded
from tollgate.settings import Settings

CHECKOUT = Path(__file__).resolve().parents[2]
START = "index.html"
MOST_CLICKS = 2
# Tags by which a page's structure is compared with what a code host shows.
STRUCTURE = ("li", "table", "tr", "pre", "h2", "h3", "img", "blockquote")


class Page(HTMLParser):
    """One built page: its ids, its links, and the tags of its article."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        # A reader sees these without opening a menu: the tabs, and the text.
        self.seen: list[str] = []
        self.loaded: list[str] = []
        self.tags: Counter[str] = Counter()
        self.code: list[str] = []
        self._in_code = False
        self._in_article = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one tag has."""
        values = {name: value or "" for name, value in attrs}
        self._in_article |= tag == "article"
        self.tags[tag] += self._in_article
        if tag == "code" and self._in_article:
            self._in_code = True
            self.code.append("")
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
            if self._in_article or "md-tabs__link" in values.get("class", ""):
                self.seen.append(values["href"])
        if tag in ("script", "img", "iframe"):
            self.loaded.append(values.get("src", ""))
        if tag == "link":
            self.loaded.append(values.get("href", ""))

    def handle_data(self, data: str) -> None:
        """Collect the text of code."""
        if self._in_code:
            self.code[-1] += data

    def handle_endtag(self, tag: str) -> None:
        """Notice where the text and its code end."""
        if tag == "code":
            self._in_code = False
        if tag == "article":
            self._in_article = False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does; a warning of Zensical would fail it."""
    out = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "tools/docs_site.py", "--out", str(out)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"docs: {out / 'site' / START}\n"
    return out / "site"


@pytest.fixture(scope="module")
def built(site: Path) -> dict[str, Page]:
    """Read all pages of the site, by path."""
    return {
        path.relative_to(site).as_posix(): Page(path.read_text())
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


def place(page: str, link: str) -> tuple[str, str] | None:
    """Return file and anchor of a link; None for one that leaves the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return page, unquote(parts.fragment)
    file = posixpath.join(posixpath.dirname(page), unquote(parts.path))
    if file.endswith("/") or file == ".":
        file = posixpath.join(file, START)
    return posixpath.normpath(file), unquote(parts.fragment)


def test_links_of_the_site_lead_to_pages_and_anchors(
    site: Path, built: dict[str, Page]
) -> None:
    """Each link of each page, those of navigation among them."""
    broken = []
    for name, page in built.items():
        for link in page.links:
            target = place(name, link)
            if target is None:
                continue
            file, anchor = target
            if file in built:
                if anchor and anchor not in built[file].ids:
                    broken.append((name, link))
            elif not (site / file).is_file():
                broken.append((name, link))
    assert broken == []


def clicks(built: dict[str, Page]) -> dict[str, int]:
    """Count the clicks from the start page to each page."""
    counts = {START: 0}
    waiting = [START]
    for name in waiting:
        page = built[name]
        for link in page.seen if name == START else page.links:
            target = place(name, link)
            if target and target[0] in built and target[0] not in counts:
                counts[target[0]] = counts[name] + 1
                waiting.append(target[0])
    return counts


def test_every_page_is_two_clicks_from_the_start(built: dict[str, Page]) -> None:
    """By tabs and text of the start page, then by any link of that page."""
    counts = clicks(built)
    assert set(built) - set(counts) == set()
    assert {name for name, count in counts.items() if count > MOST_CLICKS} == set()


def test_pages_load_nothing_from_other_hosts(built: dict[str, Page]) -> None:
    """No font, script, style or picture of a CDN."""
    for name, page in built.items():
        assert not [one for one in page.loaded if "//" in one], name


def test_pages_show_the_same_as_a_code_host(built: dict[str, Page]) -> None:
    """Lists, tables, headings and all code of GitHub's Markdown are on the site."""
    markdown = MarkdownIt("commonmark").enable("table")
    for path in sorted((CHECKOUT / "docs").rglob("*.md")):
        name = docs_site.page_name(path).removesuffix(".md") + ".html"
        page = built[name.replace("README.html", START)]
        wanted = Page(f"<article>{markdown.render(path.read_text())}</article>")
        assert [page.tags[tag] for tag in STRUCTURE] == [
            wanted.tags[tag] for tag in STRUCTURE
        ], path
        assert [one.strip() for one in page.code] == [
            one.expandtabs(4).strip() for one in wanted.code
        ], path


def test_search_finds_pages_but_no_logs_and_code(site: Path) -> None:
    """All pages are in the index, except those whose words would hide the others'."""
    items = json.loads((site / "search.json").read_text())["items"]
    found = {item["location"].partition("#")[0] for item in items}
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    missing = {"404.html", "performance-log.html", "checkout/CHANGELOG.html"}
    code = {name for name in pages if re.search(r"\.\w+\.html", name)}
    assert found == pages - missing - code
    assert len(code) < 20


def test_pages_name_no_place_of_this_machine(site: Path) -> None:
    """Generated defaults are those of any checkout."""
    for page in site.rglob("*.html"):
        assert str(CHECKOUT) not in page.read_text(), page


def test_pictures_are_small() -> None:
    """A picture of a page has less than 200 kB."""
    for picture in (CHECKOUT / "docs").rglob("*.png"):
        assert picture.stat().st_size < 200_000, picture


# The build ---------------------------------------------------------------------------


def test_a_page_that_the_navigation_lacks_is_an_error(tmp_path: Path) -> None:
    """And so are an entry without a page, and one that stands twice."""
    configuration = tmp_path / "zensical.toml"
    configuration.write_text(
        '[project]\nnav = [{"A" = "a.md"}, {"More" = [{"B" = "b.md"}, "a.md", '
        '{"Runbooks" = "runbooks/README.md"}]}]\n'
    )
    pages = ("a.md", "new.md", "runbooks/README.md", "runbooks/Down.md")
    assert [
        *docs_site.navigation_problems(configuration, (*pages, "checkout/c.md"))
    ] == [
        "zensical.toml: nav: b.md: there is no such page",
        "zensical.toml: nav: a.md is listed twice",
        "zensical.toml: nav: docs/new.md is not listed; add a line such as "
        '{ "Title" = "new.md" }',
    ]


def test_links_out_of_docs_lead_to_pages_of_the_site(tmp_path: Path) -> None:
    """To the page of a file or folder; links in code blocks stay."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "run.py").write_text("print('[a](b.md)')\n")
    (tmp_path / "README.md").write_text("# Read\n\n[docs](docs/a.md#b)\n")
    (tmp_path / "docs" / "a.md").write_text(
        "# A\n\n## B\n\n[1](../README.md#read) [2](../code/run.py) [3](../code/) "
        "[4](#b) [5](https://a.example/b.md)\n\n```text\n[6](../README.md)\n```\n"
    )
    assert docs_site.source_pages(tmp_path) == {
        "a.md": "# A\n\n## B\n\n[1](checkout/README.md#read) "
        "[2](checkout/code/run.py.md) [3](checkout/code/README.md) [4](#b) [5](https://a.example/b.md)\n\n"
        "```text\n[6](../README.md)\n```\n",
        "checkout/README.md": "# Read\n\n[docs](../a.md#b)\n",
        "checkout/code/README.md": "# code\n\n`code` in the repository:\n\n"
        "* `run.py`\n",
        "checkout/code/run.py.md": "# run.py\n\n`code/run.py` in the repository:\n\n"
        "````text\nprint('[a](b.md)')\n````\n",
    }


def test_a_link_to_a_missing_file_ends_the_build(tmp_path: Path) -> None:
    """With the page and the link; Zensical would accept one that is no Markdown."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Read\n")
    (tmp_path / "docs" / "a.md").write_text("[proxy](../proxy.py)\n")
    with pytest.raises(SystemExit, match=r"docs/a\.md: \.\./proxy\.py: there is no"):
        docs_site.source_pages(tmp_path)


# Generated reference -----------------------------------------------------------------


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, by its words."""
    for name, command in getattr(group, "commands", {}).items():
        yield from leaves(command, (*path, name))
        if not hasattr(command, "commands"):
            yield " ".join((*path, name)), command


def test_the_command_line_page_has_every_command_and_option() -> None:
    """Under the command's heading: all of its options, with a meaning."""
    sections = re.split(r"^#+ tollgate ", docs_reference.commands_page(), flags=re.M)
    by_command = {one.partition("\n")[0]: one for one in sections}
    found = dict(leaves(typer.main.get_command(app)))
    assert len(found) > 60
    for words, command in found.items():
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    row = rf"^\| .*`{option}`.* \| .* \| .*\w.* \|$"
                    assert re.search(row, by_command[words], re.M), (words, option)


def test_the_settings_page_has_every_setting() -> None:
    """With the variable that the settings read, and a meaning."""
    page = docs_reference.settings_page()
    for key, default in msgspec.to_builtins(Settings()).items():
        (row,) = re.findall(rf"^\| `{key}` \|(.*)\|$", page, re.MULTILINE)
        variable, _, shown, meaning = (cell.strip() for cell in row.split(" | "))
        assert variable == f"`TOLLGATE_{key.upper()}`"
        assert shown.strip("`") == (
            "" if default in ("", None) else msgspec.json.encode(default).decode()
        )
        assert len(meaning) > 10


def test_degraded_bits_and_codes_have_meanings() -> None:
    """Each bit with its value; CLOCK_BEHIND is a code of readings."""
    page = docs_reference.codes_page()
    for bit in Degraded:
        assert re.search(rf"^\| {bit.value} \| `{bit.name}` \| .*\w", page, re.M)
    assert "| `CLOCK_BEHIND` | The reading came too late" in page
    assert "| `SCORE_DECLINE` | " in page


def test_tensors_are_those_of_the_contract() -> None:
    """The fraud ensemble: names and types that docs/contract.md defines."""
    section = docs_reference.tensors_page().partition("### fraud\n")[2]
    section = section.partition("\n### ")[0]
    shown = re.findall(r"^\| (?:in|out)put \| `(\w+)` \| (\w+) \|", section, re.M)
    contract = (CHECKOUT / "docs" / "contract.md").read_text()
    for name, kind in shown:
        assert re.search(rf"^\| .*`{name}`.* \| {kind} \|", contract, re.M), name
    assert len(shown) == 11

"""
Build the documentation site: `make docs`.

The pages of docs/, the files outside of docs/ that they link to, and the reference
pages generated from the code are put into one folder, and Zensical makes the site of
it. A broken link or anchor, and a page that the navigation lacks, end the build.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import docs_reference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parent.parent
CONFIGURATION = CHECKOUT / "zensical.toml"
# Style and script of the site.
ASSETS = Path(__file__).resolve().parent / "docs_assets"
# Inside the site: files of the checkout that are not in docs/.
OUTSIDE = "checkout"
# Pages that search leaves out, because their words would hide those of other pages.
_UNSEARCHED = re.compile(rf"performance-log\.md|{OUTSIDE}/(CHANGELOG|.+\.\w+)\.md")
_FENCE = r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence)`* *$"
_LINK = r"\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
_FENCE_OR_LINK = re.compile(f"{_FENCE}|{_LINK}", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"(?:\d+\.|[*-]) +(?=\S)")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_PICTURES = {".png", ".svg"}


def main(arguments: list[str] | None = None) -> int:
    """Build the site into a folder; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=CHECKOUT / ".tollgate" / "docs")
    out: Path = parser.parse_args(arguments).out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    pages = {**source_pages(), **docs_reference.pages()}
    if problems := [*navigation_problems(CONFIGURATION, pages)]:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    write(out, pages)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=out, text=True, capture_output=True, check=False)
    if done.returncode:
        # Zensical reports a failed build with Python's traceback below its findings.
        said = done.stdout + done.stderr.partition("Traceback (most recent")[0]
        print(f"{said.strip()}\nmake docs: see above", file=sys.stderr)
        return 1
    print(f"docs: {out / 'site' / 'index.html'}")
    return 0


def write(out: Path, pages: dict[str, str]) -> None:
    """Write the folder that Zensical reads: configuration, pages, pictures, style."""
    for name, text in pages.items():
        if name.endswith(".md"):
            text = python_markdown(text)
        if _UNSEARCHED.fullmatch(name):
            text = f"---\nsearch:\n  exclude: true\n---\n\n{text}"
        path = out / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ASSETS, out / "pages" / "assets")
    for picture in (CHECKOUT / "docs").rglob("*.png"):
        path = out / "pages" / picture.relative_to(CHECKOUT / "docs")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, path)
    folders = 'docs_dir = "pages"\nsite_dir = "site"\n'
    text = CONFIGURATION.read_text(encoding="utf-8")
    text = text.replace("[project]\n", f"[project]\n{folders}", 1)
    (out / "zensical.toml").write_text(text, encoding="utf-8")


# Pages -------------------------------------------------------------------------------


def source_pages(checkout: Path = CHECKOUT) -> dict[str, str]:
    """
    Read the pages of docs/, and all files that they link to directly or indirectly.

    Links are rewritten to places inside the site. A link to a file that is no Markdown
    leads to a page that shows the file, a link to a folder to a list of its files.

    Returns:
        Path inside the site to its Markdown.
    """
    waiting = [*checkout.glob("docs/**/*.md"), checkout / "README.md"]
    pages: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        name = page_name(path, checkout)
        if name not in pages:
            pages[name], linked = _relinked(path, checkout)
            waiting += linked
    return dict(sorted(pages.items()))


def page_name(path: Path, checkout: Path = CHECKOUT) -> str:
    """Return the place inside the site of a file or folder of the checkout."""
    name = path.relative_to(checkout)
    name = name.relative_to("docs") if name.parts[0] == "docs" else OUTSIDE / name
    if path.is_dir():
        return f"{name.as_posix()}/README.md"
    return name.as_posix() if path.suffix == ".md" else f"{name.as_posix()}.md"


def _relinked(path: Path, checkout: Path) -> tuple[str, list[Path]]:
    """Read a page with its links rewritten; and the files that they lead to."""
    linked = []
    folder = Path(page_name(path, checkout)).parent

    def relink(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or "://" in target or target.startswith("mailto:"):
            return found[0]
        file = Path(os.path.normpath(path.parent / target))
        if file.suffix in _PICTURES:
            return found[0]
        if not file.exists():
            problem = f"{path.relative_to(checkout)}: {target}: there is no such file"
            raise SystemExit(f"make docs: {problem}")
        if (file / "README.md").exists():
            file = file / "README.md"
        linked.append(file)
        place = os.path.relpath(page_name(file, checkout), folder)
        return f"]({place}{found['anchor'] or ''})"

    return _FENCE_OR_LINK.sub(relink, _markdown(path, checkout)), linked


def python_markdown(text: str) -> str:
    """
    Change GitHub's Markdown so that Python-Markdown, which Zensical uses, agrees.

    Blocks inside list items are indented by four columns, not by the width of the
    item's mark, and a pipe in a table's code has no backslash.
    """
    lines = []
    width = 0  # of the mark of the item that a line may belong to
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced, width = not fenced, 0
        elif not fenced and (item := _ITEM.match(line)):
            if lines and lines[-1].startswith(" " * 4):
                lines.append("")  # ends the block of the item before
            width = item.end()
        elif width and line[:width].isspace():
            line = f"{' ' * 4}{line[width:]}"
        elif line:
            width = 0
        if not fenced and line.startswith("|"):
            line = _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        lines.append(line)
    return "\n".join([*lines, ""])


def _markdown(path: Path, checkout: Path) -> str:
    """Read a page; show any other file, or list a folder, as one."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    if path.is_dir():
        files = sorted(one.name for one in path.iterdir() if one.name[0] not in "._")
        body = "\n".join(f"* `{name}`" for name in files)
    else:
        body = f"````text\n{path.read_text(encoding='utf-8').rstrip()}\n````"
    name = path.relative_to(checkout).as_posix()
    return f"# {path.name}\n\n`{name}` in the repository:\n\n{body}\n"


# Navigation --------------------------------------------------------------------------


def navigation_problems(configuration: Path, pages: Iterable[str]) -> Iterator[str]:
    """Find entries of the navigation without a page, and pages without an entry."""
    names = {name for name in pages if name.endswith(".md")}
    nav = tomllib.loads(configuration.read_text(encoding="utf-8"))["project"]["nav"]
    listed = [*_entries(nav)]
    for name in sorted(set(listed) - names):
        yield f"{configuration.name}: nav: {name}: there is no such page"
    for name in sorted({one for one in listed if listed.count(one) > 1}):
        yield f"{configuration.name}: nav: {name} is listed twice"
    for name in sorted(names - set(listed)):
        index = f"{Path(name).parent.as_posix()}/README.md"
        if index not in listed and not name.startswith(f"{OUTSIDE}/"):
            yield (
                f"{configuration.name}: nav: docs/{name} is not listed; add a line "
                f'such as {{ "Title" = "{name}" }}'
            )


def _entries(nav: Any) -> Iterator[str]:
    """Yield the pages that a part of the navigation lists."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav:
        if not isinstance(nav, str):
            yield from _entries(part)


if __name__ == "__main__":
    sys.exit(main())

"""Every command that a page shows is one that the programs take."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from tollgate.cli.app import app

CHECKOUT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        *CHECKOUT.glob("*.md"),
        *CHECKOUT.glob("docs/**/*.md"),
        *CHECKOUT.glob("helm/*.md"),
        *CHECKOUT.glob("loadtests/*.md"),
    ]
)
# What ends a command on a line of shell; `\S` follows a redirection: its file.
_SHELL = {"|", ">", ">>", "<", "&", "&&", "||", ";"}
_PROGRAM = re.compile(r"(?:\.venv/bin/)?(?:(tollgate)|python -m (loadtests\.\w+))$")
_ELLIPSIS = "…"
_TOLLGATE = typer.main.get_command(app)
_NAMES = [[name] for name in _TOLLGATE.commands]


class Command(NamedTuple):
    """A command as a page shows it."""

    page: str
    program: str
    words: tuple[str, ...]
    whole: bool  # from a code block: nothing is left out but what "…" stands for


class Understood(BaseException):
    """Ends a program when its command line was read."""


def shell_words(line: str) -> list[str]:
    """Split one line of shell, up to its comment."""
    line = line.replace("2>&1", "")
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|><&;")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command in a line, without what surrounds them."""
    words: list[str] = []
    redirected = False
    for word in [*shell_words(line), ";"]:
        if word not in _SHELL:
            if not redirected:
                words.append(word)
            redirected = False
        elif word.startswith((">", "<")):
            redirected = True
        else:
            yield words
            words = []


def shell_lines(page: Path) -> list[str]:
    """List the lines of a page's shell blocks, fenced as such or indented by four."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    blocks = [
        *re.findall(r"^```(?:sh|server)\n(.*?)^```", text, re.MULTILINE | re.DOTALL),
        *re.findall(r"^(?: {4}\S.*\n)+", text, re.MULTILINE),
    ]
    return [line.strip() for block in blocks for line in block.splitlines()]


def commands_in(page: Path) -> Iterator[Command]:
    """Yield the commands of a page: of its code blocks, and those in backquotes."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    name = str(page.relative_to(CHECKOUT))
    for line in shell_lines(page):
        yield from _commands_in_line(name, line, whole=True)
    without = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    without = re.sub(r"^ {4}\S.*\n", "", without, flags=re.MULTILINE)
    for quoted in re.findall(r"`([^`\n]+)`", without):
        yield from _commands_in_line(name, quoted, whole=False)


def _commands_in_line(page: str, line: str, *, whole: bool) -> Iterator[Command]:
    if "tollgate " not in line and "loadtests." not in line:
        return
    for words in simple_commands(line):
        for start in range(len(words)):
            for stop in (start + 1, start + 3):
                found = _PROGRAM.fullmatch(" ".join(words[start:stop]))
                # "docker run IMAGE tollgate score" has a command of ours inside,
                # "helm install tollgate" has none.
                ours = start == 0 or words[stop : stop + 1] in _NAMES
                if found and ours:
                    program = found[1] or found[2]
                    yield Command(page, program, tuple(words[stop:]), whole)


COMMANDS = sorted({command for page in PAGES for command in commands_in(page)})


def options_of(command: TyperCommand | TyperGroup) -> set[str]:
    """Name the options that a command of ours takes."""
    return {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    } | {"--help"}


def leaf_of(words: tuple[str, ...]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """Follow the words to a command; what is left are its own words."""
    command = _TOLLGATE
    left = list(words)
    while isinstance(command, TyperGroup) and left and not left[0].startswith("-"):
        named = left.pop(0)
        assert named in command.commands, f"there is no command {named!r}"
        command = command.commands[named]
    return command, left


def read_by_tollgate(command: Command) -> None:
    """Let the command line read a command, as far as the page shows it."""
    leaf, words = leaf_of(command.words)
    named = {word.partition("=")[0] for word in words if word.startswith("--")}
    unknown = named - options_of(leaf)
    assert not unknown, f"{leaf.name} has no {', '.join(sorted(unknown))}"
    # "…" stands for words that the page leaves out, "[--json]" for some that may be.
    shortened = any(_ELLIPSIS in word or word[:1] == "[" for word in words)
    if not command.whole or shortened or "--help" in words:
        return
    assert not isinstance(leaf, TyperGroup), f"{leaf.name} needs a command"
    leaf.make_context(leaf.name, words)


def read_by_loadtest(command: Command, patched: pytest.MonkeyPatch) -> None:
    """Let a load test read its command line, and end it there."""
    module = importlib.import_module(command.program)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{command.program}.__main__")
    real = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, words: list[str]) -> None:
        if not words or _ELLIPSIS in words:
            for action in self._actions:
                action.required = False
        real(self, words)
        raise Understood

    patched.setattr(argparse.ArgumentParser, "parse_args", parse)
    words = [*command.words]
    with pytest.raises(Understood):
        module.main(words)


@pytest.mark.parametrize(
    "command",
    COMMANDS,
    ids=lambda one: f"{one.page}: {one.program} {' '.join(one.words)}",
)
def test_documented_commands_are_understood(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program exists, has each option, and has all that it requires."""
    if command.program == "tollgate":
        read_by_tollgate(command)
    else:
        read_by_loadtest(command, monkeypatch)


# The commands of these pages make their files; a test executes them.
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in ("products.md", "shop.md")],
    ids=lambda page: page.name,
)
def test_files_of_the_checkout_in_shell_blocks_exist(page: Path) -> None:
    """A word that begins with a folder of the checkout names a file of it."""
    folders = {path.name for path in CHECKOUT.iterdir() if path.is_dir()}
    folders.discard(".tollgate")  # what the commands write
    written = set(re.findall(r"> *([\w./-]+)", "\n".join(shell_lines(page))))
    for line in shell_lines(page):
        for word in re.findall(r"(?<![\w./$-])[\w.-]+/[\w./*-]*", line):
            if word.partition("/")[0] in folders and word not in written:
                assert list(CHECKOUT.glob(word.rstrip("/"))), f"{word} in: {line}"

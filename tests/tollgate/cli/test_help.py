"""Every help has an example that is one: the command's own parser takes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import tollgate
from tollgate import compiled
from tollgate.cli.app import app

ROOT = typer.main.get_command(app)
EXAMPLE = re.compile(r"^ *Example: (tollgate(?: .*)?)$", re.MULTILINE)


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Name every command and group."""
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from walk(one, (*path, name))


PATHS = list(walk(ROOT))


def shown(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Run the command line, which ends well; what it prints, in lines of any length."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    assert ROOT.main(words, prog_name="tollgate", standalone_mode=False) in (0, None)
    return capsys.readouterr().out


def parsed(words: list[str]) -> list[str]:
    """Have the parsers of group and command take words; the words they left over."""
    context = ROOT.make_context("tollgate", words)
    while rest := [*context._protected_args, *context.args]:
        name, command, left = context.command.resolve_command(context, rest)
        context = command.make_context(name, left, parent=context)
        if not hasattr(command, "commands"):
            break
    return [*getattr(context, "_protected_args", []), *context.args]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_help_has_an_example_that_parses(
    path: tuple[str, ...],
    flag: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is one of this very command, and no option of it is unknown or lacks."""
    text = shown([*path, flag], capsys, monkeypatch)
    examples = EXAMPLE.findall(text)
    assert len(examples) == 1, text
    words = shlex.split(examples[0].strip())[1:]
    assert words[: len(path)] == list(path)
    assert parsed(words) == []


def test_an_example_that_is_none_would_be_found() -> None:
    """The parsers are the commands' own: they refuse what the commands refuse."""
    for words in (["release", "list", "--produkt", "x"], ["score"], ["relase"]):
        with pytest.raises(typer.BadParameter.__bases__[0]):
            parsed(words)


def test_the_version_is_the_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name, the version in pyproject.toml, and the compiled loops."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    stated = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert stated is not None
    assert stated[1] == tollgate.__version__
    found = shown(["--version"], capsys, monkeypatch)
    first, second = found.splitlines()
    assert first == f"tollgate {stated[1]}"
    assert second == f"compiled loops: {compiled.describe()}"

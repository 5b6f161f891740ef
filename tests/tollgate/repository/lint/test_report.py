"""Findings are printed in one order, with one reason for each rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import indent

import pytest

from tollgate.repository.lint.lint_report import (
    at_least,
    exit_status,
    summary,
    text_lines,
)
from tollgate.repository.lint.lint_rule import Severity
from tollgate.repository.lint.linting import RULES, Issue, Question, lint

Write = Callable[[Mapping[str, str]], Path]
Edited = Callable[[Sequence[tuple[str, str, str]], Sequence[str]], dict[str, str]]

CHECKOUT = Path(__file__).resolve().parents[4]
MODEL = "net/config.pbtxt"


def issue(severity: Severity) -> Issue:
    """Make a finding of a severity."""
    return Issue(
        rule=RULES["TG205"],
        severity=severity,
        file="a/config.pbtxt",
        line=3,
        where="",
        problem="p",
    )


ADVICE, WARNING, ERROR = (issue(severity) for severity in Severity)


@pytest.mark.parametrize(
    ("issues", "status", "words"),
    [
        ([], 0, ""),
        ([ADVICE, ADVICE], 0, "2 advice"),
        ([WARNING, ADVICE], 1, "1 warning, 1 advice"),
        ([ERROR, WARNING, WARNING], 2, "1 error, 2 warnings"),
        ([ERROR, ERROR], 2, "2 errors"),
    ],
)
def test_the_gravest_decides_the_status(
    issues: list[Issue], status: int, words: str
) -> None:
    """2 with an error, 1 with a warning; advice fails nothing."""
    assert exit_status(issues) == status
    assert summary(issues) == words


def test_a_threshold_keeps_what_is_as_grave() -> None:
    """Or graver."""
    assert at_least([ERROR, WARNING, ADVICE], Severity.WARNING) == [ERROR, WARNING]
    assert at_least([WARNING, ADVICE], Severity.ERROR) == []
    assert len(at_least([ERROR, WARNING, ADVICE], Severity.ADVICE)) == 3


def test_the_papers_show_what_is_printed(write: Write, edited: Edited) -> None:
    """The example of docs/check.md is the output for one wrong shape."""
    folder = write(edited([(MODEL, "dims: [ 4 ]", "dims: [ 5 ]")], ()))
    found = at_least(lint(Question(repository=folder)).issues, Severity.ERROR)
    page = (CHECKOUT / "docs" / "check.md").read_text()
    printed = "\n".join(text_lines(found, folder=folder.parent))
    assert indent(f"{printed}\n", " " * 4) in page


def test_graver_findings_come_first_then_file_and_line(
    write: Write, edited: Edited
) -> None:
    """Whatever the order in which the rules looked."""
    edits = [
        (MODEL, "max_batch_size: 8", "max_batch_size: 4"),
        (MODEL, "count: 1", "count: 9"),
        (MODEL, "", "version_policy { specific { versions: 2 } }"),
        ("prepare/config.pbtxt", "{ }", "{ max_queue_delay_microseconds: 999 }"),
    ]
    found = lint(Question(repository=write(edited(edits, ())), cores=2)).issues
    assert [one.rule.code for one in found] == ["TG109", "TG403", "TG203", "TG205"]
    places = [(-one.severity, one.file, one.line) for one in found]
    assert places == sorted(places)


def test_every_code_that_is_found_has_its_rule() -> None:
    """And every rule is looked for somewhere."""
    used: set[str] = set()
    for path in (CHECKOUT / "tollgate" / "repository").rglob("*.py"):
        text = path.read_text()
        used |= set(re.findall(r'"(TG\d{3})"', text))
    assert used == RULES.keys()

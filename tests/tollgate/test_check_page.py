"""docs/check.md has every rule, as the code has it, and its examples are real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tollgate.repository.lint.exposure import ADVISORIES
from tollgate.repository.lint.lint_rule import Rule
from tollgate.repository.lint.linting import RULES, table

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "check.md").read_text()


def test_the_page_ends_with_the_table_of_the_code() -> None:
    """`tollgate check --rules` prints it; put it there after a change."""
    assert PAGE.endswith("\n".join(["", *table(), ""]))


def test_the_page_has_every_vulnerability() -> None:
    """Row by row, as the linter tells them."""
    for one in ADVISORIES:
        cells = ", ".join(one.names), one.fixed, one.way, one.harm, one.source
        assert f"| {' | '.join(cells)} |\n" in PAGE


def test_the_example_is_what_the_code_says() -> None:
    """Its rule is told in the words of the rule."""
    (code,) = set(re.findall(r"^ {4}error +(TG\d+)", PAGE, re.MULTILINE))
    rule = RULES[code]
    for line in (
        f"{rule.code}  {rule.title}",
        f"  why     {rule.why}",
        f"  mend    {rule.mend}",
        f"  source  {rule.source}",
    ):
        assert f"\n    {line}\n" in PAGE


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_is_told_in_full(rule: Rule) -> None:
    """A code, sentences, and a source; what it names of ours is there."""
    assert re.fullmatch(r"TG[0-5]\d\d", rule.code)
    assert rule.title[0].islower() or rule.title.startswith("HTTP")
    assert not rule.title.endswith(".")
    assert rule.why.endswith(".")
    assert rule.mend
    for name, heading in re.findall(
        r"(?<![\w/])((?:docs|tollgate)/[\w/.-]+\.\w+)(?:, ([^;,]+))?(?=;|,|:|$)",
        rule.source,
    ):
        path = CHECKOUT / name
        assert path.exists(), name
        if heading:
            headings = re.findall(r"^#+ (?:.* · )?(.+)$", path.read_text(), re.M)
            assert any(one.startswith(heading) for one in headings), rule.source

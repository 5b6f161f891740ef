"""Templates render with quoted values, and refuse a missing one."""

from __future__ import annotations

import ast
from pathlib import Path

import jinja2
import pytest
import yaml

from tollgate.templating import python_literal, render, yaml_text

CHECKOUT = Path(__file__).parents[2]
TEMPLATES = sorted(
    str(path.relative_to(CHECKOUT))
    for package in ("tollgate", "converters", "loadtests")
    for path in (CHECKOUT / package).rglob("*.j2")
)
STEP = "tollgate/product/templates/step.py.j2"


@pytest.mark.parametrize("template", TEMPLATES)
def test_template_without_values_is_refused(template: str) -> None:
    """A template compiles, and a name without a value is an error."""
    if Path(template).name.startswith(
        ("page.", "parts.", "charts.", "tensors.", "monitor.css")
    ):
        return  # no values of their own
    with pytest.raises(jinja2.UndefinedError):
        render(template, {})


def test_values_are_escaped_in_html_only() -> None:
    """Markup in a title is text; a Python file has it unchanged."""
    page = render(
        "tollgate/monitor/templates/monitor.html.j2",
        {"title": "<b>&", "tone": "", "looked": "", "products": []},
    )
    assert "<h1>&lt;b&gt;&amp;</h1>" in page
    assert "<b>" not in page
    step = render(STEP, {"step": "a<b", "purpose": "", "base": "FeatureStep"})
    assert "`a<b`" in step


@pytest.mark.parametrize(
    "text",
    [
        '"',
        "'''",
        "\\",
        "a\nb",
        "{{ x }}",
        "# c",
        '"""',
        "größe",
        "\U0001f600\n",
        "ö\x7f\u2028\U000e0001",
    ],
)
def test_literals_cannot_end_early(text: str) -> None:
    """A quoted text is read back as the same text, in Python and in YAML."""
    assert ast.literal_eval(python_literal(text)) == text
    assert yaml.safe_load(f"key: {yaml_text(text)}") == {"key": text}


def test_packages_may_lie_in_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template is found in its package; the converters are a wheel of their own."""
    folder = tmp_path / "elsewhere" / "templates"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "a.txt.j2").write_text("{{ number }} é", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert render("elsewhere/templates/a.txt.j2", {"number": 3}) == "3 é"
    for name in ("elsewhere/templates/b.txt.j2", "nowhere/templates/a.txt.j2"):
        with pytest.raises(jinja2.TemplateNotFound):
            render(name, {})

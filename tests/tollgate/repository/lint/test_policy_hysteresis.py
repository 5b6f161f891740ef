"""`tollgate check` names what a policy's hysteresis cannot mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.products.press_product import NAME, write_press
from tollgate.cli.app import app


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("entity: machine", "entity: plant", "entity: 'plant' is no entity; machine"),
        ("at_least: 3", "at_least: 6", "at_least: 6 is not within 1 … 5"),
        ("hold: 60s", "hold: soon", "hold: 'soon' is no time such as 60s"),
        ("cool_down: 10m", "cool_down: 31d", "cool_down: 31d is more than 30d"),
        ("e: in_service\n", "e: resting\n", "'resting' is no rule; warm, hot, in_serv"),
    ],
)
def test_a_section_without_a_meaning_is_an_error(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    """By file, line and key; without the change nothing is found."""
    folder = tmp_path / "model_repository"
    write_press(folder)
    command = ["check", "--repository", str(folder), "--product", NAME]
    assert CliRunner().invoke(app, command).exit_code == 0
    policy = folder / f"{NAME}_decision/1/policy.yaml"
    text = policy.read_text()
    assert text.count(old) == 1
    policy.write_text(text.replace(old, new))
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2
    (line,) = (one for one in found.output.splitlines() if "TG318  /" in one)
    assert f"{policy}:" in line
    assert f"hysteresis.{words}" in line or words in line

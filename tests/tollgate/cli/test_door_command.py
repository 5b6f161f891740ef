"""Wrong options of `tollgate door` are refused before it listens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.products.small_shop import release_shop, write_shop
from tollgate.cli.app import app

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"


def refusal(*options: str) -> str:
    """Run the command; return its error."""
    done = CliRunner().invoke(app, ["door", "--repository", str(REPOSITORY), *options])
    assert getattr(done.exception, "exit_status", done.exit_code) == 2
    return str(done.exception)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--door-cert", "cert.pem"], "--door-cert: and --door-key come together"),
        (["--product", "fruad"], "fruad"),
        (["--max-rows", "2000"], "--max-rows: 2000 rows are above the 1024"),
        (["--api-keys", "absent"], "absent: cannot be read"),
        (["--token-file", "absent"], "absent: cannot be read"),
        (["--fallback", "absent"], "absent: cannot be read"),
        (["--url", "h:1", "--url", "h:1"], "addresses: 'h:1' is empty or stands twice"),
        (["--url", ""], "addresses: '' is empty or stands twice"),
        (["--door-cert", "absent", "--door-key", "absent"], "absent cannot be used"),
    ],
)
def test_wrong_options_are_refused_in_words(options: list[str], words: str) -> None:
    """With the option or the file, and what is right."""
    assert words in refusal(*options)


def test_a_missing_server_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "granian", None)
    monkeypatch.delitem(sys.modules, "tollgate.door.http_server", raising=False)
    said = refusal()
    assert said.startswith("granian is not installed; ")
    assert "pip install -e '.[door]'" in said


def test_a_key_is_not_sent_unencrypted(tmp_path: Path) -> None:
    """To a gateway on another machine; it says so before it listens."""
    token = tmp_path / "token"
    token.write_text("k" * 32)
    words = refusal("--token-file", str(token), "--url", "192.0.2.1:8001")
    assert "a token to 192.0.2.1:8001 needs TLS" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loans: {otherwise: review}", "loans: is none of fraud"),
        ("fraud: {otherwise: maybe}", "'maybe' is none of approve, review, decline"),
        ("fraud: {bands: []}", "otherwise: is missing"),
        ("fraud: review", "Expected `object`"),
        ("- a", "Expected `object`"),
    ],
)
def test_a_wrong_rule_is_refused_in_words(
    tmp_path: Path, text: str, words: str
) -> None:
    """With the file, and the product or the key."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    assert words in refusal("--fallback", str(path))


def test_a_product_that_ranks_has_no_rule(tmp_path: Path) -> None:
    """Its popular items answer, so a rule would have no effect."""
    repository, path = tmp_path / "models", tmp_path / "rules.yaml"
    release_shop(repository, write_shop(repository))
    path.write_text("shop: {otherwise: weak}")
    words = refusal(
        *("--repository", str(repository), "--product", "shop"),
        *("--fallback", str(path)),
    )
    assert "shop: ranks items, so it has no rule" in words

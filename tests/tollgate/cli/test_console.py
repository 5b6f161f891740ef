"""What commands say is said as it is."""

from __future__ import annotations

import polars as pl
import pytest

from tollgate.cli import console
from tollgate.cli.decisions import decision_commands


def test_a_line_stays_a_line_whatever_is_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Long ones are not broken for logs; brackets of paths and lists are no markup."""
    text = "tollgate: /var/[b]/x: names[0] is [/etc] " + "and so on " * 20
    console.say(text)
    assert capsys.readouterr().err == f"{text}\n"


@pytest.mark.parametrize(
    ("flag", "warns"),
    [
        ("redis://me:pw@host/0", True),
        ("rediss://host?ssl_keyfile=/k&ssl_certfile=/c&ssl_password=pw", True),
        ("redis://me@host/0", False),
        ("unix:///tmp/a:b@c.sock", False),
        (None, False),
    ],
)
def test_a_password_on_the_command_line_is_warned_of(
    capsys: pytest.CaptureFixture[str], flag: str | None, warns: bool
) -> None:
    """One line that names the option and its variable, and no password."""
    console.settings(store_url=flag)
    said = capsys.readouterr().err
    assert said.startswith("warning: --store-url holds a password") is warns
    assert ("TOLLGATE_STORE_URL" in said) is warns
    assert "pw" not in said


def test_an_id_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers choose it, and what is shown was decided and counted by then."""
    monkeypatch.setattr(console.out, "width", 200)
    text = "a[b]c [/d]"
    answers = {name: [text] for name in decision_commands._ANSWER}
    answers |= {"score": [0.5], "degraded": [0]}
    frame = pl.DataFrame({"transaction_id": [text]})
    decision_commands._write(frame, answers, out=None, kind="table", noun="rows")
    assert capsys.readouterr().out.count(text) == 4

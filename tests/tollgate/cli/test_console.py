"""What commands say is said as it is."""

from __future__ import annotations

import pytest

from tollgate.cli import console


def test_a_line_stays_a_line_whatever_is_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Long ones are not broken for logs; brackets of paths and lists are no markup."""
    text = "tollgate: /var/[b]/x: names[0] is [/etc] " + "and so on " * 20
    console.say(text)
    assert capsys.readouterr().err == f"{text}\n"

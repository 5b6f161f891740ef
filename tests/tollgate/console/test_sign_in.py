"""Who may see the console, with a secret and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.console import SignIn, read_console_secret
from tollgate.console.sign_in import WRONG_AT_MOST, is_loopback
from tollgate.errors import InputError

SECRET = "correct-horse-battery"


def sent(cookie: str) -> dict[str, str]:
    """The header that a browser sends after it got a cookie."""
    return {"cookie": cookie.partition(";")[0], "host": "tollgate.example:8003"}


def test_the_cookie_of_the_secret_admits_and_no_other_does() -> None:
    """Neither one of another secret, nor one whose time was moved."""
    sign_in = SignIn(SECRET)
    cookie = sign_in.cookie()
    assert sign_in.admits(sent(cookie))
    assert SignIn(SECRET).admits(sent(cookie))
    assert not SignIn("another-secret-of-mine").admits(sent(cookie))
    name, _, value = cookie.partition(";")[0].partition("=")
    expiry, _, signature = value.partition(".")
    later = f"{name}={int(expiry) + 1}.{signature}"
    past = f"{name}=1.{sign_in._sign('1')}"
    other = f"{name}={SignIn('another-secret-of-mine').cookie().partition('=')[2]}"
    empty = (f"{name}=", f"{name}=x.y", f"{name}=.", name, sign_in.no_cookie(), "")
    for forged in (later, past, other, *empty):
        assert not sign_in.admits(sent(forged)), forged


def test_cookies_of_other_servers_and_applications_do_not_disturb() -> None:
    """A browser sends one host's cookies to all its ports, in any form."""
    one, other = SignIn(SECRET), SignIn("another-secret-of-mine")
    mine, theirs = (each.cookie().partition(";")[0] for each in (one, other))
    odd = 'settings={"a": [1, "x;y"]}; [bad]=1; =; flag; a="\\'
    headers = {"cookie": f"{odd}; {mine};{theirs}; {odd}"}
    assert one.admits(headers)
    assert other.admits(headers)
    assert not SignIn("a-third-secret-of-mine").admits(headers)


def test_the_cookie_is_for_no_script_and_no_other_site() -> None:
    """Its attributes; the secret is not in it."""
    cookie = SignIn(SECRET).cookie()
    assert {"HttpOnly", "SameSite=Strict", "Path=/console"} <= set(cookie.split("; "))
    assert SECRET not in cookie


def test_an_address_waits_after_five_wrong_secrets() -> None:
    """Others do not; the right secret is not counted."""
    sign_in = SignIn(SECRET)
    for _ in range(WRONG_AT_MOST):
        assert sign_in.wait_s("192.0.2.1") == 0
        assert sign_in.check(SECRET, address="192.0.2.1")
        assert not sign_in.check(SECRET + "x", address="192.0.2.1")
    assert 0 < sign_in.wait_s("192.0.2.1") <= 60
    assert not sign_in.check(SECRET, address="192.0.2.1")
    assert sign_in.wait_s("192.0.2.2") == 0


def test_memory_of_wrong_secrets_is_bounded() -> None:
    """A thousand addresses at most, the newest."""
    sign_in = SignIn(SECRET)
    for number in range(1_500):
        sign_in.check("no", address=f"address-{number}")
    assert list(sign_in._wrong) == [f"address-{one}" for one in range(500, 1_500)]


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("127.0.0.1:8003", True),
        ("127.9.9.9", True),
        ("localhost:8003", True),
        ("LocalHost", True),
        ("[::1]:8003", True),
        ("rebound.example:8003", False),
        ("localhost.example", False),
        ("10.0.0.1:8003", False),
        ("", False),
    ],
)
def test_without_a_secret_only_names_of_this_machine_are_admitted(
    host: str, admitted: bool
) -> None:
    """A page of another site cannot read it by a name that it resolves to loopback."""
    assert SignIn().admits({"host": host}) == admitted
    assert not SignIn(SECRET).admits({"host": host})


def test_loopback_addresses() -> None:
    """As the server is told to listen on."""
    assert [is_loopback(one) for one in ("127.0.0.1", "::1", "[::1]", "localhost")] == [
        True
    ] * 4
    assert not any(is_loopback(one) for one in ("0.0.0.0", "::", "10.1.2.3", "host"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not one line"),
        (b"two words-of-a-secret\n", "is not one line"),
        (b"short\n", "the secret has 5 characters; at least 16 are needed"),
        (b"\xff" * 20, "is not one line of plain text"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    """By file and reason, without its content."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem) as refused:
        read_console_secret(path)
    assert str(path) in str(refused.value)
    path.write_text(f"{SECRET}\n")
    assert read_console_secret(path) == SECRET

"""Addresses of stores: what they say, and what is refused without repeating them."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.redis.store_address import Address, Tls, open_client, read_address

SECRET = "hunter2%21"


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("redis://", Address(places=(("localhost", 6379),))),
        (" redis://h:1\n", Address(places=(("h", 1),))),
        ("redis://:a[b@h", Address(places=(("h", 6379),), password="a[b")),
        ("redis://h:1/2", Address(places=(("h", 1),), db=2)),
        ("redis://[::1]:7", Address(places=(("::1", 7),))),
        (
            "redis://u%40:p%2Fw@h?db=3",
            Address(places=(("h", 6379),), username="u@", password="p/w", db=3),
        ),
        ("redis://:pw@h", Address(places=(("h", 6379),), password="pw")),
        ("unix:///run/a%20b.sock?db=1", Address(path="/run/a b.sock", db=1)),
        ("rediss://h", Address(places=(("h", 6379),), tls=Tls())),
        (
            "rediss://h?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k"
            "&ssl_password=x&ssl_check_hostname=False",
            Address(
                places=(("h", 6379),),
                tls=Tls("/ca", "/c", "/k", "x", check_host=False),
            ),
        ),
        (
            "redis+cluster://u:p@a:1,b,[::1]:3",
            Address(
                places=(("a", 1), ("b", 6379), ("::1", 3)),
                username="u",
                password="p",
                cluster=True,
            ),
        ),
        (
            "rediss+cluster://a:1",
            Address(places=(("a", 1),), tls=Tls(), cluster=True),
        ),
    ],
)
def test_address_says_where_who_and_how(url: str, means: Address) -> None:
    """Places, user, database and TLS, with percent-encoding undone once."""
    assert read_address(url) == means


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("h:99999", "a node that is not host:port"),
        ("h:x", "a node that is not host:port"),
        (":1", "a node that is not host:port"),
        ("::1", "a node that is not host:port"),
        ("a,,b", "a node that is not host:port"),
        ("a,b", "names 2 nodes and is no redis+cluster"),
        ("h/x", "db: is not a number"),
        ("h?db=-1", "db: is not a number"),
        ("h?socket_timeout=9", "socket_timeout: is none of db"),
        ("h?ssl_ca_certs=/ca", "ssl_ca_certs: is none of db"),
        ("h?nonsense", "is no address"),
    ],
)
def test_wrong_address_is_refused_and_not_repeated(rest: str, words: str) -> None:
    """One sentence says what is wrong; the password is not in it."""
    with pytest.raises(InputError) as caught:
        read_address(f"redis://user:{SECRET}@{rest}")
    assert words in str(caught.value)
    trace = "".join(traceback.format_exception(caught.value))
    assert SECRET not in trace
    assert "hunter2" not in repr(read_address(f"redis://user:{SECRET}@h"))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("ssl_cert_reqs=none", "ssl_cert_reqs: is none of db, ssl_ca_certs"),
        ("ssl_check_hostname=maybe", "ssl_check_hostname: is neither true nor false"),
        ("ssl_keyfile=/k", "ssl_keyfile: is there without ssl_certfile"),
        ("ssl_ca_certs=/no/ca", "ssl_ca_certs: /no/ca cannot be used: No such file"),
        ("ssl_certfile=/no/c", "ssl_certfile: /no/c cannot be used: No such file"),
        ("ssl_ca_certs={junk}", "ssl_ca_certs: {junk} cannot be used: "),
        ("ssl_certfile={junk}", "ssl_certfile: {junk} cannot be used: "),
    ],
)
def test_tls_that_cannot_work_is_refused_at_the_start(
    tmp_path: Path, query: str, words: str
) -> None:
    """A store that is not verified, a file that is absent or is none of TLS."""
    junk = tmp_path / "junk.pem"
    junk.write_text("this is no certificate")
    url = f"rediss://user:{SECRET}@h?{query}".replace("{junk}", str(junk))
    with pytest.raises(InputError) as caught:
        RedisStore(url, deadline_s=1.0)
    assert words.replace("{junk}", str(junk)) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_socket_is_refused_where_its_path_is_too_long() -> None:
    """sun_path of unix(7) has 108 bytes with the final zero; é takes two of them."""
    longest = "/" + "é" * 53
    assert read_address(f"unix://{longest}").path == longest
    with pytest.raises(InputError) as caught:
        read_address(f"unix://user:{SECRET}@{longest}x?db=1")
    words = "store url: has a path of 108 bytes; a unix socket's is at most"
    assert str(caught.value) == f"{words} 107"


def test_cluster_is_refused_where_one_redis_is_needed() -> None:
    """A feed has streams, which a cluster cannot read together."""
    with pytest.raises(InputError, match="this needs a single Redis"):
        open_client("redis+cluster://h")
    with pytest.raises(InputError, match="begins with none of redis://"):
        open_client("http://h")

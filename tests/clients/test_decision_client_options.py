"""What a client is told when it is made: addresses, proof of who it is, size, class."""

from __future__ import annotations

import pytest

from tests.support.clients.purchases import ONCE, RULE, purchase
from tests.support.store.certificates import make_authority, make_certificate
from tollgate.testing import TestServer
from tollgate.testing.server import ServerTls
from tollgate_client import DecisionClient, InputError, Options, Tls, tls_from


def test_what_can_wait_says_so(server):
    """As metadata of each request, which a gateway reads; others say nothing."""
    for bulk in (True, False):
        options = Options(deadline_s=30.0, bulk=bulk)
        with DecisionClient([server.url], fallback=RULE, options=options) as client:
            client.decide(purchase())
        assert server.asked[-1].metadata.get("tollgate-class") == (
            "bulk" * bulk or None
        )


def test_large_requests_travel_gzipped_when_that_is_wanted(server):
    """The server reads both alike."""
    options = Options(deadline_s=30.0, compress_above_bytes=1500)
    with DecisionClient([server.url], fallback=RULE, options=options) as client:
        told = client.decide_rows([purchase(number) for number in range(32)])
        assert [one.source for one in told] == ["model"] * 32
        assert client.decide(purchase()).source == "model"
    assert len(server.asked) == 33


@pytest.mark.parametrize(
    ("addresses", "options", "words"),
    [
        ([], Options(), "addresses: there is none"),
        (["a:1", "a:1"], Options(), "addresses: 'a:1' is empty or stands twice"),
        (["far:1"], Options(token="s"), "token: a token to far:1 needs TLS"),
        (["a:1"], Options(inputs={"id": "BYTES"}), "bands need an input amount"),
    ],
)
def test_what_does_not_fit_together_is_refused_at_once(addresses, options, words):
    """Where the client is made."""
    with pytest.raises(InputError, match=words):
        DecisionClient(addresses, fallback=RULE, options=options)


def test_options_that_make_no_sense_are_refused(tmp_path):
    """No deadline, a certificate without its key, a file that is not there."""
    with pytest.raises(InputError, match="deadline_s: 0 is not above 0"):
        Options(deadline_s=0)
    with pytest.raises(InputError, match="certificate and key come together"):
        Tls(certificate=b"x")
    with pytest.raises(InputError, match=r"ca\.pem: No such file"):
        tls_from(authority=tmp_path / "ca.pem")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates: of the server, of a caller, of a stranger."""
    path = tmp_path_factory.mktemp("certificates")
    ca = make_authority(path, "ca")
    make_certificate(ca, "server", of="DNS:fraud.test")
    make_certificate(ca, "caller", of="DNS:shop.test")
    make_certificate(make_authority(path, "other"), "stranger", of="DNS:shop.test")
    return path


def test_tls_mtls_and_token(folder):
    """Who is certified and brings the token is answered, a stranger is not."""
    proof = ServerTls(
        certificate=(folder / "server.pem").read_bytes(),
        key=(folder / "server.key").read_bytes(),
        callers=(folder / "ca.pem").read_bytes(),
    )

    def source(name, authority="ca"):
        tls = tls_from(
            authority=folder / f"{authority}.pem",
            certificate=folder / f"{name}.pem",
            key=folder / f"{name}.key",
            server_name="fraud.test",
        )
        options = Options(deadline_s=5.0, tls=tls, token=lambda: "s3cret", retry=ONCE)
        with DecisionClient([server.url], fallback=RULE, options=options) as client:
            return client.decide(purchase()).source

    with TestServer(tls=proof) as server:
        assert source("caller") == "model"
        assert server.asked[0].metadata["authorization"] == "Bearer s3cret"
        assert source("stranger") == "fallback"
        assert source("caller", authority="other") == "fallback"
        assert len(server.asked) == 1

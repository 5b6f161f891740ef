"""Who may call a real nginx with the gateway's configuration: keys, certificates."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tests.support.gateway.gateways import PATIENT_S, SERVICE, Place, ask, live, running
from tollgate.errors import InputError, SetupError
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx
from tollgate.gateway.template import Gateway
from tollgate.testing import TestServer
from tollgate_client import DecisionClient, Fallback, Options, RetryRules, tls_from

pytestmark = pytest.mark.system("nginx", "openssl")

NOW_US = 1_700_000_000_000_000
ROW = {
    "transaction_id": ["t-1"],
    "customer_id": ["c"],
    "terminal_id": ["m"],
    "amount": [12.5],
    "event_time": [NOW_US],
}


def test_a_flood_of_one_caller_is_cut_and_no_others(
    place: Place, upstream: TestServer
) -> None:
    """One a second and three at once: two keys of a caller count as one."""
    second = add_key(place.keys, "shop")
    told = place.gateway(upstream.url, rate=1, burst=3)
    with running(told), place.channel(told.listen) as opened:
        both = [place.shop, second]
        said = [live(opened, key=both[turn % 2]) for turn in range(40)]
        assert said[:4] == ["OK"] * 4
        assert "RESOURCE_EXHAUSTED" in said
        assert live(opened, key=place.bank) == "OK"


def test_keys_are_changed_while_it_answers(place: Place, upstream: TestServer) -> None:
    """Old and new are good at once, then the old one is not; no call is lost."""
    keys = place.folder / "changing"
    old = add_key(keys, "shop")
    told = place.gateway(upstream.url, keys=keys)
    ended = threading.Event()
    sources: list[str] = []

    def decide_on(client: DecisionClient) -> None:
        number = 0
        while not ended.is_set():
            one = {name: column[0] for name, column in ROW.items()}
            number += 1
            one["transaction_id"] = f"t-{number}"
            sources.append(client.decide(one).source)

    used = [old]
    options = Options(
        deadline_s=PATIENT_S,
        tls=tls_from(authority=place.pem("ca")),
        token=lambda: used[-1],
        retry=RetryRules(attempts=4, share=1.0),
    )
    rule = Fallback(otherwise="review")
    with (
        running(told) as nginx,
        DecisionClient(told.listen, fallback=rule, options=options) as client,
    ):
        caller = threading.Thread(target=decide_on, args=(client,))
        caller.start()
        try:
            new = add_key(keys, "shop")
            _read_anew(nginx)
            assert _said(place, told, key=new) == "OK"
            assert _said(place, told, key=old) == "OK"
            used.append(new)
            lines = keys.read_text().splitlines(keepends=True)
            keys.write_text("".join(one for one in lines if not one.startswith(old)))
            _read_anew(nginx)
            assert _said(place, told, key=old) == "UNAUTHENTICATED"
            assert _said(place, told, key=new) == "OK"
            keys.write_text("not a key;\n")
            with pytest.raises(InputError, match="line 1"):
                nginx.reload_if_changed()
            assert _said(place, told, key=new) == "OK"
        finally:
            ended.set()
            caller.join()
    assert set(sources) == {"model"}


def _read_anew(nginx: Nginx) -> None:
    """Have it read its files anew, and wait until no process knows the old ones."""
    before = nginx.workers
    assert nginx.reload_if_changed()
    until = time.monotonic() + PATIENT_S
    while before & nginx.workers or not nginx.workers:
        assert time.monotonic() < until
        time.sleep(0.01)


def _said(place: Place, gateway: Gateway, *, key: str) -> str:
    """Ask by a connection of its own: old ones end with the old keys."""
    with place.channel(gateway.listen) as opened:
        return live(opened, key=key)


def _until(place: Place, gateway: Gateway, *, key: str, said: str) -> bool:
    """Ask until the answer is that; new processes of nginx take a moment."""
    until = time.monotonic() + PATIENT_S
    while time.monotonic() < until:
        if _said(place, gateway, key=key) == said:
            return True
        time.sleep(0.01)
    return False


def test_a_second_gateway_in_a_folder_changes_nothing_of_the_first(
    place: Place, upstream: TestServer
) -> None:
    """It is refused, and what the first one reads anew later is still its own."""
    told = place.gateway(upstream.url)
    with running(told) as nginx:
        other = msgspec.structs.replace(
            place.gateway(upstream.url, auth="mtls", client_ca=place.pem("ca")),
            state=told.state,
        )
        with pytest.raises(SetupError, match="is in use by process"):
            Nginx(other)
        new = add_key(place.keys, "newcomer")
        _read_anew(nginx)
        assert _said(place, told, key=new) == "OK"
    with running(other):
        assert _said(place, other, key=new) == "UNAUTHENTICATED"


def test_a_flood_over_the_rate_does_not_fill_the_log(
    place: Place, upstream: TestServer
) -> None:
    """One in a hundred has a line, as of what is too much: about 3 of 300."""
    told = place.gateway(upstream.url, rate=1, burst=1)
    with running(told) as nginx, place.channel(told.listen) as opened:
        said = [live(opened, key=place.shop) for _ in range(300)]
        log = nginx.log
    assert said.count("RESOURCE_EXHAUSTED") > 290
    assert log.read_text().count('"refused":"rate"') < 30


def test_no_key_is_logged(place: Place, upstream: TestServer) -> None:
    """Neither a right one nor a wrong one, whatever becomes of the request."""
    told = place.gateway(upstream.url, rate=1, burst=1)
    wrong = "f" * 64
    with running(told) as nginx, place.channel(told.listen) as opened:
        said = [live(opened, key=key) for key in (wrong, *[place.shop] * 20)]
        large = ask(opened, f"{SERVICE}ModelInfer", key=place.bank, body=bytes(200_000))
        log = nginx.log
    assert {"UNAUTHENTICATED", "OK", "RESOURCE_EXHAUSTED"} == set(said)
    assert large == "RESOURCE_EXHAUSTED"
    text = log.read_text()
    assert '"caller":"bank"' in text
    assert '"refused":"unauthenticated","http":"401","grpc":"16"' in text
    for key in (wrong, place.shop, place.bank):
        assert key not in text


@pytest.fixture(scope="module")
def certified(place: Place) -> Place:
    """More callers: one whom another authority knows, and one whose time is over."""
    for name, ca, days in (("stranger", "other", "2"), ("expired", "ca", "-1")):
        certificate = place.pem(name)
        subprocess.run(
            [
                *("openssl", "req", "-newkey", "ec", "-nodes", "-subj", f"/CN={name}"),
                *("-pkeyopt", "ec_paramgen_curve:P-256"),
                *("-keyout", str(certificate.with_suffix(".key"))),
                *("-out", str(certificate.with_suffix(".csr"))),
            ],
            check=True,
            capture_output=True,
        )
        subprocess.run(
            [
                *("openssl", "x509", "-req", "-days", days, "-CAcreateserial"),
                *("-in", str(certificate.with_suffix(".csr"))),
                *("-CA", str(place.pem(ca)), "-CAkey", str(place.folder / f"{ca}.key")),
                *("-out", str(certificate)),
            ],
            check=True,
            capture_output=True,
        )
    return place


@pytest.mark.parametrize(
    ("auth", "good"),
    [
        ("mtls", {("caller", ""), ("caller", "right"), ("caller", "wrong")}),
        ("both", {("caller", "right")}),
        (
            "either",
            {("caller", ""), ("caller", "right"), ("caller", "wrong"), ("", "right")},
        ),
    ],
)
def test_who_is_let_in(
    certified: Place, upstream: TestServer, auth: str, good: set[tuple[str, str]]
) -> None:
    """Of all pairs of certificate and key, exactly the good ones."""
    told = certified.gateway(
        upstream.url, auth=auth, client_ca=certified.pem("ca"), rate=100_000
    )
    keys = {"": "", "right": certified.shop, "wrong": "0" * 64}
    said = {}
    with running(told):
        for certificate in ("", "caller", "stranger", "expired"):
            with certified.channel(told.listen, certificate=certificate) as opened:
                for name, key in keys.items():
                    said[certificate, name] = live(opened, key=key)
    assert {pair for pair, word in said.items() if word == "OK"} == good
    assert set(said.values()) == {"OK", "UNAUTHENTICATED"}


def test_the_images_script_reads_keys_anew(place: Place, upstream: TestServer) -> None:
    """90-watch.sh, with nothing of ours in Python, has nginx take a new key."""
    keys = place.folder / "watched"
    old = add_key(keys, "shop")
    told = place.gateway(upstream.url, keys=keys)
    files = Path(__file__).parents[2] / "helm/tollgate/files/gateway"
    with running(told):
        environment = told.values() | {
            "GATEWAY_CONFIGURATION": str(told.state / "nginx.conf"),
            "GATEWAY_WATCH_S": "0.1",
            "PATH": "/usr/bin:/bin:/usr/sbin",
        }
        script = (files / "90-watch.sh").read_text().replace("watch &", "watch")
        watching = subprocess.Popen(
            [shutil.which("sh") or "sh", "-c", script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert watching.stdout is not None
            assert "looking at keys" in watching.stdout.readline()
            assert _said(place, told, key=old) == "OK"
            new = add_key(keys, "shop")
            assert _until(place, told, key=new, said="OK")
        finally:
            watching.kill()
            watching.communicate()

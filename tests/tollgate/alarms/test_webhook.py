"""A webhook gets every alarm: signed, retried, and a dead letter after the limit."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.checkout import checkout_environment
from tests.support.store.certificates import make_authority, make_certificate
from tests.support.stream.alarm_chain import ALARMS, LEASE_S
from tollgate.alarms.webhook import (
    Webhook,
    WebhookDeliverer,
    WebhookMetrics,
    read_secrets,
    signed_headers,
)
from tollgate.errors import InputError
from tollgate.stream.redis_streams import RedisFeed, RedisSource

LONG_S = 60.0
SECRETS = (bytes(range(24)), b"k" * 32)


class Request:
    """A request as the receiver got it."""

    def __init__(self, headers: dict[str, str], body: bytes) -> None:
        self.headers = headers
        self.body = body
        self.alarm_id = json.loads(body)["alarm_id"] if body[:1] == b"{" else ""


class Receiver:
    """An HTTP server that records requests and answers by script."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.requests: list[Request] = []
        self.status: Callable[[Request], int] = lambda request: 204
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            """Answer one request."""

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                body = self.rfile.read(size)
                if len(body) < size:  # the sender was killed
                    return
                request = Request(dict(self.headers.items()), body)
                with receiver._lock:
                    receiver.requests.append(request)
                    status = receiver.status(request)
                if status:
                    self.send_response(status)
                    self.send_header("Location", "/elsewhere")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True
            )
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/alarms"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that accepts everything, until the test says otherwise."""
    with Receiver() as one:
        yield one


@pytest.fixture
def stopped() -> threading.Event:
    """The event that ends a deliverer."""
    return threading.Event()


@pytest.fixture
def deliverer_of(
    store_url: str, receiver: Receiver, stopped: threading.Event
) -> Iterator[Callable[..., WebhookDeliverer]]:
    """Make deliverers; their parts are closed after the test."""
    opened: list[WebhookDeliverer] = []

    def make(url: str = receiver.url, **options: Any) -> WebhookDeliverer:
        source = RedisSource(store_url, feed=ALARMS, group="webhook", lease_s=LEASE_S)
        webhook = Webhook(url, secrets=SECRETS, timeout_s=5.0)
        deliverer = WebhookDeliverer(
            source,
            webhook,
            metrics=WebhookMetrics("fraud"),
            stopped=stopped,
            **{"first_retry_s": 0.01, **options},
        )
        opened.append(deliverer)
        return deliverer

    yield make
    for one in opened:
        one._source.close()
        one.close()


def alarm(name: str, machine: str = "m") -> bytes:
    """The part of an alarm that delivery reads, and some more."""
    return json.dumps(
        {"alarm_id": name, "entities": {"customer_id": machine}, "decision": "review"}
    ).encode()


def publish(url: str, *alarms: bytes) -> None:
    """Put alarms on their topic."""
    feed = RedisFeed(url, feed=ALARMS)
    feed.send([b"m"] * len(alarms), alarms)
    feed.close()


def drain(deliverer: WebhookDeliverer, alarms: int) -> None:
    """Step until so many alarms were handled."""
    until_s = time.monotonic() + LONG_S
    while alarms > 0:
        assert time.monotonic() < until_s
        alarms -= deliverer.step(wait_s=0.05)


def pending(client: redis.Redis) -> int:
    """Count the alarms that are not acknowledged."""
    return int(client.xpending(f"{ALARMS}:0", "webhook")["pending"])


def test_an_alarm_is_posted_signed_with_each_secret(
    store_url: str,
    receiver: Receiver,
    deliverer_of: Callable[..., WebhookDeliverer],
    redis_client: redis.Redis,
) -> None:
    """As the Standard Webhooks specification says, computed here by its text."""
    publish(store_url, alarm("a-1"))
    before_s = int(time.time())
    drain(deliverer_of(), 1)
    (request,) = receiver.requests
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert request.body == alarm("a-1")
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == headers["idempotency-key"] == "a-1"
    sent_s = headers["webhook-timestamp"]
    assert before_s <= int(sent_s) <= time.time()
    signed = f"a-1.{sent_s}.".encode() + request.body
    expected = [
        "v1,"
        + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        for key in SECRETS
    ]
    assert headers["webhook-signature"].split(" ") == expected
    assert pending(redis_client) == 0


def test_the_signature_is_that_of_the_specifications_example() -> None:
    """Secret, id, time and body as in its text; the signature with openssl's HMAC."""
    headers = signed_headers(
        b'{"test": 2432232314}',
        alarm_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        secrets=[base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
        time_s=1614265330,
    )
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-signature"] == expected


def test_a_failing_receiver_gets_the_alarm_again_with_the_same_id(
    store_url: str,
    receiver: Receiver,
    deliverer_of: Callable[..., WebhookDeliverer],
) -> None:
    """Errors, redirections and lost connections are retried until 2xx."""
    answers = iter([500, 302, 0, 429, 404, 201])
    receiver.status = lambda request: next(answers)
    publish(store_url, alarm("a-1"))
    deliverer = deliverer_of()
    drain(deliverer, 1)
    assert [one.alarm_id for one in receiver.requests] == ["a-1"] * 6
    assert (deliverer.delivered, deliverer.retries) == (1, 5)


def test_an_alarm_that_is_never_accepted_is_a_dead_letter(
    store_url: str,
    receiver: Receiver,
    deliverer_of: Callable[..., WebhookDeliverer],
    redis_client: redis.Redis,
) -> None:
    """After the limit, or at once if it is refused or its id is no header."""
    wrong = {"late": 503, "bad": 422}
    receiver.status = lambda request: wrong.get(request.alarm_id, 200)
    lines = alarm("two\nlines", "z")
    publish(
        store_url,
        alarm("late", "x"),
        alarm("bad", "y"),
        alarm("good"),
        b"no alarm",
        lines,
    )
    deliverer = deliverer_of(give_up_s=0.3)
    drain(deliverer, 5)
    letters = {
        fields[b"event"]: fields[b"reason"].decode()
        for _, fields in redis_client.xrange(f"{ALARMS}:dead-letters")
    }
    assert set(letters) == {
        alarm("late", "x"),
        alarm("bad", "y"),
        b"no alarm",
        lines,
    }
    assert letters[alarm("late", "x")].startswith("127.0.0.1: HTTP status 503 after ")
    assert letters[alarm("bad", "y")] == "127.0.0.1: refused with HTTP status 422"
    assert letters[b"no alarm"] == letters[lines] == "is no alarm"
    tries = [one.alarm_id for one in receiver.requests]
    assert tries.count("late") > 1
    assert (tries.count("bad"), tries.count("good")) == (1, 1)


def test_the_alarms_of_a_machine_come_in_order(
    store_url: str,
    receiver: Receiver,
    deliverer_of: Callable[..., WebhookDeliverer],
) -> None:
    """Also where one of them has to be sent again; other machines do not wait."""
    failures = {"m-3": 3, "n-1": 2}

    def status(request: Request) -> int:
        failures[request.alarm_id] = failures.get(request.alarm_id, 0) - 1
        return 500 if failures[request.alarm_id] >= 0 else 200

    receiver.status = status
    alarms = [alarm(f"{name}-{n}", name) for n in range(20) for name in "mnop"]
    publish(store_url, *alarms)
    drain(deliverer_of(), 80)
    for name in "mnop":
        came = [one.alarm_id for one in receiver.requests if one.alarm_id[0] == name]
        assert list(dict.fromkeys(came)) == [f"{name}-{n}" for n in range(20)]


def test_a_stopped_deliverer_leaves_alarms_to_the_next(
    store_url: str,
    receiver: Receiver,
    stopped: threading.Event,
    deliverer_of: Callable[..., WebhookDeliverer],
    redis_client: redis.Redis,
) -> None:
    """They stay pending, and are delivered when the receiver is back."""
    receiver.status = lambda request: 503
    publish(store_url, alarm("a-1"), alarm("a-2"))
    first = deliverer_of()
    stopping = threading.Timer(0.3, stopped.set)
    stopping.start()
    drain(first, 2)
    stopping.join()
    assert pending(redis_client) == 2
    assert not redis_client.exists(f"{ALARMS}:dead-letters")
    first._source.close()
    stopped.clear()
    receiver.status = lambda request: 200
    drain(deliverer_of(), 2)
    assert {one.alarm_id for one in receiver.requests[-2:]} == {"a-1", "a-2"}


CHILD = """
import sys, threading
from tests.support.stream.alarm_chain import ALARMS, LEASE_S
from tollgate.alarms.webhook import Webhook, WebhookDeliverer, WebhookMetrics
from tollgate.stream.redis_streams import RedisSource
store_url, url = sys.argv[1:]
WebhookDeliverer(
    RedisSource(store_url, feed=ALARMS, group="webhook", lease_s=LEASE_S),
    Webhook(url, secrets=[b"k" * 32]),
    metrics=WebhookMetrics("fraud"),
    stopped=threading.Event(),
).run()
"""


@pytest.mark.parametrize("after", [1, 7])
def test_a_killed_deliverer_loses_no_alarm(
    after: int,
    store_url: str,
    receiver: Receiver,
    deliverer_of: Callable[..., WebhookDeliverer],
    redis_client: redis.Redis,
) -> None:
    """SIGKILL while the receiver answers: the next one delivers the batch again."""
    killed = threading.Event()

    def status(request: Request) -> int:
        if len(receiver.requests) == after and not killed.is_set():
            child.kill()
            killed.set()
            return 0
        return 204

    receiver.status = status
    alarms = [alarm(f"m-{n}", f"m{n % 3}") for n in range(12)]
    publish(store_url, *alarms)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, store_url, receiver.url],
        env=checkout_environment(),
    ) as child:
        assert child.wait(LONG_S) == -9
    drain(deliverer_of(), 12)
    assert {one.alarm_id for one in receiver.requests} == {f"m-{n}" for n in range(12)}
    assert pending(redis_client) == 0
    assert not redis_client.exists(f"{ALARMS}:dead-letters")


def test_a_receiver_that_is_too_slow_gets_the_alarm_again(receiver: Receiver) -> None:
    """Its late answer does not count; the next attempt has its own time."""
    delays_s = iter([0.5, 0.0])

    def status(request: Request) -> int:
        time.sleep(next(delays_s))
        return 204

    receiver.status = status
    times = iter([1_000, 1_600])
    webhook = Webhook(
        receiver.url, secrets=SECRETS, timeout_s=0.1, now_s=lambda: next(times)
    )
    sent = [webhook.send(alarm("a-1"), alarm_id="a-1") for _ in range(2)]
    until_s = time.monotonic() + LONG_S
    while len(receiver.requests) < 2:  # the second one waits for the first
        assert time.monotonic() < until_s
        time.sleep(0.01)
    found = [
        {name.lower(): value for name, value in one.headers.items()}
        for one in receiver.requests
    ]
    found.sort(key=lambda one: one["webhook-timestamp"])
    assert sent[0] == 0
    assert [one["webhook-timestamp"] for one in found] == ["1000", "1600"]
    assert found[0]["webhook-id"] == found[1]["webhook-id"] == "a-1"
    assert found[0]["webhook-signature"] != found[1]["webhook-signature"]


def test_no_receiver_at_all_is_a_failure_to_retry(
    store_url: str,
    deliverer_of: Callable[..., WebhookDeliverer],
    redis_client: redis.Redis,
) -> None:
    """The reason names the host, and not the path, which may hold a secret."""
    publish(store_url, alarm("a-1"))
    deliverer = deliverer_of("http://127.0.0.1:9/s3cret", give_up_s=0.1)
    drain(deliverer, 1)
    ((_, fields),) = redis_client.xrange(f"{ALARMS}:dead-letters")
    assert fields[b"reason"].startswith(b"127.0.0.1: no response after ")
    assert b"s3cret" not in fields[b"reason"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no secret"),
        ("plain", "line 1: is not whsec_ and base64"),
        ("whsec_c2hvcnQ=", "line 1: is not whsec_ and base64 of 24 to 64 bytes"),
        (
            f"whsec_{base64.b64encode(b'k' * 24).decode()}\nwhsec_!",
            "line 2: is not whsec_ and base64",
        ),
    ],
)
def test_a_file_without_secrets_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    """The error names file and line, and not the secret."""
    path = tmp_path / "webhook.secret"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_secrets(path)
    assert str(error.value) == f"{path}: {problem}"


def test_a_file_may_have_several_secrets(tmp_path: Path) -> None:
    """Each signs, so that a receiver changes from one to the next."""
    path = tmp_path / "webhook.secret"
    path.write_text(
        "".join(f"whsec_{base64.b64encode(one).decode()}\n" for one in SECRETS)
    )
    assert read_secrets(path) == SECRETS


@pytest.mark.system("openssl")
def test_a_receiver_proves_its_name(tmp_path: Path) -> None:
    """An alarm goes only to a receiver with a certificate of the given authority."""
    ca = make_authority(tmp_path, "authority")
    other = make_authority(tmp_path, "other")
    with Receiver(make_certificate(ca, "receiver", of="IP:127.0.0.1")) as receiver:
        sent = {
            authority: Webhook(receiver.url, secrets=SECRETS, authority=authority).send(
                alarm("a-1"), alarm_id="a-1"
            )
            for authority in (ca, other, None)
        }
    assert sent == {ca: 204, other: 0, None: 0}
    assert len(receiver.requests) == 1
    with pytest.raises(InputError, match="is no file of certificates"):
        Webhook(receiver.url, secrets=SECRETS, authority=tmp_path / "absent.pem")


@pytest.mark.parametrize("url", ["ftp://h/x", "https://", "h/x"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    """Before any alarm is read."""
    with pytest.raises(InputError, match="is not http:// or https:// and a host"):
        Webhook(url, secrets=SECRETS)

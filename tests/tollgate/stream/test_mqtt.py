"""An MQTT feed over a real mosquitto: sessions, acknowledgements, lost connections."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import checkout_environment
from tests.support.store.certificates import make_authority, make_certificate
from tests.support.stream.feeds import purchases
from tollgate.errors import InputError, StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.stream.consumer import StreamConsumer
from tollgate.stream.events import EventCodec
from tollgate.stream.mqtt import MqttFeed, MqttSource, read_address
from tollgate.stream.source import DeadLetter, Message
from tollgate.testing.mosquitto import Mosquitto
from tollgate.worker import retry

LONG_S = 60.0
WAIT_S = 0.1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """One broker for all tests of this file that do not kill it."""
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as server:
        yield server


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Close sources and feeds after the test."""
    found: list[Any] = []

    def keep(one: Any) -> Any:
        found.append(one)
        return one

    yield keep
    for one in found:
        one.close()


def subscribed(source: MqttSource) -> MqttSource:
    """Wait until the broker has the session."""
    until_s = time.monotonic() + LONG_S
    while not source.partitions():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return source


def polled(source: MqttSource, count: int) -> list[Message]:
    """Poll until so many messages came."""
    found: list[Message] = []
    until_s = time.monotonic() + LONG_S
    while len(found) < count:
        assert time.monotonic() < until_s, found
        try:
            found += source.poll(most=100, wait_s=WAIT_S)
        except StoreError:
            time.sleep(WAIT_S)
    return found


def send_until_stored(feed: MqttFeed, events: list[bytes]) -> None:
    """Publish events, again until the broker acknowledged all."""
    assert retry(
        lambda: feed.send([b"k"] * len(events), events),
        errors=(StoreError,),
        failed=lambda error: None,
        stopped=threading.Event(),
    )


def polled_until_lost(source: MqttSource) -> set[bytes]:
    """Poll the messages that came before the connection was lost."""
    found: set[bytes] = set()
    try:
        while True:
            found |= set(values(list(source.poll(most=100, wait_s=0.5))))
    except StoreError:
        return found


def values(messages: list[Message]) -> list[bytes]:
    """Return the payloads."""
    return [one.value for one in messages]


@pytest.mark.system("mosquitto")
def test_messages_come_in_order_until_they_are_committed(
    broker: Mosquitto, opened: Callable[[Any], Any]
) -> None:
    """A second consumer of the session gets what the first did not commit, in order."""
    topic = "order/readings"
    first = subscribed(MqttSource(broker.url, topic=topic, group="order"))
    feed = opened(MqttFeed(broker.url, topic=topic))
    sent = [f"{number}".encode() for number in range(30)]
    feed.send([b"k"] * 10, sent[:10])
    assert values(polled(first, 10)) == sent[:10]
    first.commit()
    feed.send([b"k"] * 20, sent[10:])
    assert values(polled(first, 20)) == sent[10:]
    assert first.backlog() == 20
    first.close()  # without a commit
    second = opened(MqttSource(broker.url, topic=topic, group="order"))
    assert values(polled(second, 20)) == sent[10:]
    second.commit()
    second.close()
    third = opened(MqttSource(broker.url, topic=topic, group="order"))
    subscribed(third)
    assert third.poll(most=100, wait_s=0.5) == []


@pytest.mark.system("mosquitto")
def test_the_broker_stores_messages_for_a_consumer_that_is_away(
    broker: Mosquitto, opened: Callable[[Any], Any]
) -> None:
    """More than mosquitto's own limits: of 20 in flight and 1,000 queued."""
    topic = "away/+/readings"
    subscribed(MqttSource(broker.url, topic=topic, group="away")).close()
    feed = opened(MqttFeed(broker.url, topic="away/{key}/readings"))
    sent = [f"{number}".encode() for number in range(3_000)]
    feed.send([b"a/b" if number % 2 else b"c" for number in range(3_000)], sent)
    source = opened(MqttSource(broker.url, topic=topic, group="away"))
    found = polled(source, 3_000)
    assert {one.position for one in found} == {"away/a_b/readings", "away/c/readings"}
    assert sorted(values(found)) == sorted(sent)


@pytest.mark.system("mosquitto")
def test_dead_letters_name_reason_and_topic(
    broker: Mosquitto, opened: Callable[[Any], Any]
) -> None:
    """They are messages of MQTT 5 with user properties, on a topic of their own."""
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    came: list[Any] = []
    ready = threading.Event()
    reader: Any = paho.Client(
        CallbackAPIVersion.VERSION2, client_id="reader", protocol=paho.MQTTv5
    )
    reader.on_message = lambda c, u, message: came.append(message)
    reader.on_subscribe = lambda *_: ready.set()
    reader.connect("127.0.0.1", broker.port)
    reader.subscribe("dead/dead-letters", qos=1)
    reader.loop_start()
    assert ready.wait(LONG_S)
    source = opened(MqttSource(broker.url, topic="dead/readings", group="dead"))
    source.add_dead_letters([DeadLetter(Message(b"{", "dead/readings"), "is cut off")])
    until_s = time.monotonic() + LONG_S
    while not came and time.monotonic() < until_s:
        time.sleep(0.01)
    reader.disconnect()
    reader.loop_stop()
    (one,) = came
    assert one.payload == b"{"
    assert dict(one.properties.UserProperty) == {
        "reason": "is cut off",
        "position": "dead/readings",
    }


@pytest.mark.system("mosquitto")
def test_events_reach_the_store_once(
    broker: Mosquitto,
    opened: Callable[[Any], Any],
    spec: FeatureSpec,
    consumer_of: Callable[..., StreamConsumer],
) -> None:
    """`tollgate stream` consumes MQTT as it does Redis and Kafka."""
    source = MqttSource(broker.url, topic="events", group="store")
    subscribed(source)
    consumer = consumer_of(source)
    feed = opened(MqttFeed(broker.url, topic="events"))
    sent = EventCodec(spec).encode_purchases(purchases(b"1", b"2"))
    feed.send([b"c"] * 4, [*sent, sent[0], b"no event"])
    stopped = threading.Event()
    until_s = time.monotonic() + LONG_S
    # The feed does not send an identical event of one call twice: three messages.
    while consumer.tally.applied + consumer.tally.dead_letters < 3:
        assert time.monotonic() < until_s
        consumer.step(stopped, wait_s=WAIT_S)
    assert (consumer.tally.applied, consumer.tally.dead_letters) == (2, 1)


@pytest.mark.system("mosquitto")
def test_a_killed_broker_comes_back_with_the_session(
    tmp_path: Path, opened: Callable[[Any], Any]
) -> None:
    """Source and feed reconnect; the feed sends again what the broker may have lost."""
    with Mosquitto(tmp_path) as broker:
        source = opened(MqttSource(broker.url, topic="kill", group="kill"))
        subscribed(source)
        stored = tmp_path / "mosquitto.db"  # with the session, a second or two later
        while not stored.exists():
            time.sleep(0.1)
        feed = opened(MqttFeed(broker.url, topic="kill"))
        sent = [f"{number}".encode() for number in range(200)]
        found: set[bytes] = set()
        for start in range(0, 200, 20):
            send_until_stored(feed, sent[start : start + 20])
            if start == 100:
                broker.kill()
                found |= polled_until_lost(source)
                broker.start()
        until_s = time.monotonic() + LONG_S
        while len(found) < 200:
            assert time.monotonic() < until_s
            try:
                found |= set(values(list(source.poll(most=100, wait_s=WAIT_S))))
                source.commit()
            except StoreError:
                time.sleep(WAIT_S)
    assert sorted(found) == sorted(sent)


@pytest.mark.system("mosquitto")
def test_a_broker_that_is_killed_during_a_call_loses_nothing_of_it(
    tmp_path: Path, opened: Callable[[Any], Any]
) -> None:
    """The same call sends again the messages that the broker had not saved yet."""
    with Mosquitto(tmp_path) as broker:
        source = opened(MqttSource(broker.url, topic="call", group="call"))
        subscribed(source)
        stored = tmp_path / "mosquitto.db"
        while not stored.exists():
            time.sleep(0.1)
        source.close()  # so that messages wait in the broker
        feed = opened(MqttFeed(broker.url, topic="call"))
        sent = [f"{number}".encode() for number in range(5_000)]
        sending = threading.Thread(target=send_until_stored, args=(feed, sent))
        sending.start()
        while len(feed._connection._pending) < 3_000:
            time.sleep(0.001)
        while len(feed._connection._pending) > 4_000:
            time.sleep(0.001)
        broker.kill()
        broker.start()
        sending.join()
        again = opened(MqttSource(broker.url, topic="call", group="call"))
        found: set[bytes] = set()
        until_s = time.monotonic() + LONG_S
        while len(found) < 5_000:
            assert time.monotonic() < until_s, len(found)
            with contextlib.suppress(StoreError):
                found |= set(values(list(again.poll(most=1_000, wait_s=WAIT_S))))
                again.commit()


CONSUMER = """
import sys
from tollgate.stream.mqtt import MqttSource
source = MqttSource(sys.argv[1], topic="sigkill", group="sigkill")
count = 0
while True:
    found = source.poll(most=7, wait_s=0.2)
    for one in found:
        print(one.value.decode(), flush=True)
    source.commit()
"""


@pytest.mark.system("mosquitto")
def test_a_killed_consumer_loses_no_message(
    broker: Mosquitto, opened: Callable[[Any], Any]
) -> None:
    """Each message is seen by one of the consumers, whenever they were killed."""
    subscribed(MqttSource(broker.url, topic="sigkill", group="sigkill")).close()
    feed = opened(MqttFeed(broker.url, topic="sigkill"))
    sent = [f"{number}" for number in range(200)]
    feed.send([b"k"] * 200, [one.encode() for one in sent])
    seen: list[str] = []
    for count in (25, 60, 200):
        child = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, broker.url],
            stdout=subprocess.PIPE,
            env=checkout_environment(),
            text=True,
        )
        assert child.stdout is not None
        with child:
            while len(set(seen)) < count:
                seen.append(child.stdout.readline().strip())
            child.kill()
            # It may have committed what it printed; a line that is cut off, it did not.
            rest = child.stdout.read().rpartition("\n")[0]
            seen += rest.split()
    assert set(seen) == set(sent)


@pytest.mark.system("mosquitto")
def test_a_broker_that_is_away_is_an_error_to_retry(tmp_path: Path) -> None:
    """Of reads, and of writes, which name the place and not the password."""
    url = f"mqtt://user:s3cret@127.0.0.1:{Mosquitto(tmp_path).port}"
    source = MqttSource(url, topic="t", group="g")
    feed = MqttFeed(url, topic="t")
    try:
        with pytest.raises(StoreError, match="the feed cannot be read: ") as read:
            source.poll(most=1, wait_s=0.1)
        with pytest.raises(StoreError, match="the feed cannot be written: ") as sent:
            feed.send([b"k"], [b"v"])
        assert "s3cret" not in f"{read.value}{sent.value}{read_address(url)!r}"
    finally:
        source.close()
        feed.close()


# paho leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.system("mosquitto", "openssl")
def test_tls_with_certificates_of_both_and_a_password(
    tmp_path: Path, opened: Callable[[Any], Any]
) -> None:
    """The broker proves its name, and the client itself; either is refused else."""
    ca = make_authority(tmp_path, "authority")
    mine = make_certificate(ca, "consumer", of="DNS:consumer")
    theirs = make_certificate(ca, "broker", of="IP:127.0.0.1")
    other = make_authority(tmp_path, "other")
    passwords = tmp_path / "passwords"
    subprocess.run(
        ["mosquitto_passwd", "-b", "-c", str(passwords), "plant", "s3/cret"], check=True
    )
    settings = (
        f"cafile {ca}\ncertfile {theirs}\nkeyfile {theirs.with_suffix('.key')}\n"
        f"require_certificate true\nallow_anonymous false\npassword_file {passwords}\n"
    )
    with Mosquitto(tmp_path / "broker", settings=settings) as broker:
        place = f"127.0.0.1:{broker.port}"
        key = f"ssl_certfile={mine}&ssl_keyfile={mine.with_suffix('.key')}"
        good = f"mqtts://plant:s3%2Fcret@{place}?ssl_ca_certs={ca}&{key}"
        source = opened(MqttSource(good, topic="tls", group="tls"))
        feed = opened(MqttFeed(good, topic="tls"))
        subscribed(source)
        feed.send([b"k"], [b"v"])
        assert values(polled(source, 1)) == [b"v"]
        for url in (
            f"mqtts://plant:s3%2Fcret@{place}?ssl_ca_certs={other}&{key}",
            f"mqtts://plant:s3%2Fcret@{place}?ssl_ca_certs={ca}",
            f"mqtts://plant:wrong@{place}?ssl_ca_certs={ca}&{key}",
        ):
            refused = MqttFeed(url, topic="tls")
            with pytest.raises(StoreError):
                refused.send([b"k"], [b"v"])
            refused.close()
        del refused
        gc.collect()


def test_files_of_tls_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """At the start."""
    with pytest.raises(InputError, match="files of TLS cannot be used"):
        MqttFeed(f"mqtts://h?ssl_ca_certs={tmp_path}/absent.pem", topic="t")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://h", "does not start with mqtt:// or mqtts://"),
        ("mqtt://", "is not HOST or HOST:PORT"),
        ("mqtt://h/topic", "is not HOST or HOST:PORT"),
        ("mqtt://h:99999", "has a port that is no number up to 65535"),
        ("mqtt://h?ssl_ca_certs=x", "ssl_ca_certs: is unknown; mqtts:// takes"),
        ("mqtts://h?verify=no", "verify: is unknown; mqtts:// takes"),
    ],
)
def test_a_wrong_address_is_refused_and_not_repeated(url: str, problem: str) -> None:
    """The error says what is wrong, without the address."""
    with pytest.raises(InputError) as error:
        read_address(url)
    assert problem in str(error.value)
    assert url not in str(error.value)


def test_an_address_has_defaults_of_its_scheme() -> None:
    """Port 1883, or 8883 with TLS; credentials may be percent-encoded."""
    plain = read_address("mqtt://us%40er:p%2Fw@broker")
    assert (plain.host, plain.port, plain.tls) == ("broker", 1883, False)
    assert (plain.username, plain.password) == ("us@er", "p/w")
    secured = read_address("mqtts://broker?ssl_ca_certs=/ca.pem")
    assert (secured.port, secured.tls, secured.ssl_ca_certs) == (8883, True, "/ca.pem")


@pytest.mark.parametrize("topic", ["#", "g/#", "g/dead-letters", "$share/x/g/+"])
def test_a_filter_that_includes_the_dead_letters_is_refused(topic: str) -> None:
    """It would read its own dead letters for ever."""
    with pytest.raises(InputError, match="includes the dead letters"):
        MqttSource("mqtt://127.0.0.1:1", topic=topic, group="g")

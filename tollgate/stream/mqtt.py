"""
Consume events from MQTT in a session that outlives the process; publish them.

The broker holds the session of a fixed client id: subscription, pending messages and
those that were delivered and not acknowledged. A message is acknowledged (PUBACK) when
its batch is committed, so a consumer that dies gets it again. MQTT has no offsets, no
partitions and no end of a topic: docs/streams.md says what follows from that.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from tollgate.errors import InputError, StoreError
from tollgate.stream.source import DeadLetter, Message

log = logging.getLogger(__name__)

SCHEMES = ("mqtt://", "mqtts://")
SOURCE = "MQTT address"
# A broker stores the session of a consumer that is away for so long.
SESSION_S = 30 * 86_400
# Messages that the broker may send ahead of their acknowledgement: some batches.
RECEIVE_MAXIMUM = 4_000
# An MQTT broker that was killed may have lost what it acknowledged last; a publisher
# that sends the messages of this time again loses none (docs/streams.md).
RESEND_S = 10.0

_PORT, _TLS_PORT = 1883, 8883
_KEEPALIVE_S = 15
_FIRST_RECONNECT_S, _MOST_RECONNECT_S = 1, 16
_TIMEOUT_S = 10.0  # without any acknowledgement
_CONNECT_S = 2.0  # a call waits so long for a connection
_TAKEN_OVER = 142  # reason code of MQTT 5
_NO_SUBSCRIBERS = 16
_WARN_EVERY_S = 60.0
_NO_TOPIC = "tollgate/none"  # nobody subscribes to it
_TLS_PARAMETERS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


class MqttAddress(msgspec.Struct, frozen=True):
    """Describe a broker: place, credentials, and files of TLS, empty for none."""

    host: str
    port: int
    tls: bool = False
    username: str = ""
    password: str = ""
    ssl_ca_certs: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""

    def __repr__(self) -> str:
        """Format the place without the credentials."""
        return f"MqttAddress({self.host!r}, {self.port})"


def read_address(url: str) -> MqttAddress:
    """
    Parse mqtt://[USER:PASSWORD@]HOST[:PORT], or mqtts:// with files of TLS.

    Raises:
        InputError: It is no such address; the text is not repeated, because it may
            contain a password.
    """
    if not url.startswith(SCHEMES):
        raise InputError(SOURCE, f"does not start with {' or '.join(SCHEMES)}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise InputError(SOURCE, "has a port that is no number up to 65535") from exc
    if not parts.hostname or parts.path.strip("/"):
        raise InputError(SOURCE, "is not HOST or HOST:PORT, without a path")
    tls = parts.scheme == "mqtts"
    files = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in files:
        if name not in _TLS_PARAMETERS or not tls:
            known = ", ".join(_TLS_PARAMETERS)
            problem = f"is unknown; mqtts:// takes {known}, mqtt:// none"
            raise InputError(SOURCE, problem, where=name)
    return MqttAddress(
        host=parts.hostname,
        port=port or (_TLS_PORT if tls else _PORT),
        tls=tls,
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        **files,
    )


class _Outgoing(msgspec.Struct, frozen=True):
    """One message to publish; the properties are MQTT's user properties."""

    topic: str
    payload: bytes
    properties: tuple[tuple[str, str], ...] = ()


class _Connection:
    """
    Hold a connection that paho restores, and publish messages over it.

    Args:
        session_s: Time for which the broker stores the session while this client is
            away; 0 begins a new session with each connection.
        connected: Called in paho's thread after each connection, with whether the
            broker had a session.
        lost: Called in paho's thread after each lost connection.
        received: Called in paho's thread with each message.
    """

    def __init__(
        self,
        address: MqttAddress,
        *,
        client_id: str,
        session_s: int = 0,
        connected: Callable[[bool], object] = lambda session: None,
        lost: Callable[[], object] = lambda: None,
        received: Callable[[Any], object] = lambda message: None,
    ) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        make_properties: Any = Properties
        self._where = f"{address.host}:{address.port}"
        self._user_properties: Any = lambda: make_properties(PacketTypes.PUBLISH)
        self._acknowledged: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._pending: dict[int, _Outgoing] = {}
        self._ready = threading.Event()
        self._warned_s = -_WARN_EVERY_S
        self._connected, self._lost = connected, lost
        self.problem = "there is no connection yet"
        self.connections = 0
        client: Any = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=paho.MQTTv5,
            manual_ack=True,
        )
        self.client = client
        if address.username:
            client.username_pw_set(address.username, address.password or None)
        if address.tls:
            client.tls_set_context(_tls_context(address))
        client.reconnect_delay_set(_FIRST_RECONNECT_S, _MOST_RECONNECT_S)
        # Else each message waits for the acknowledgement of the one before, which the
        # other side delays by 40 ms.
        client.on_socket_open = lambda c, u, sock: sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_publish = lambda c, u, mid, reason, p: self._acknowledged.put(
            (mid, reason)
        )
        client.on_message = lambda c, u, message: received(message)
        properties = make_properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = session_s
        properties.ReceiveMaximum = RECEIVE_MAXIMUM
        client.connect_async(
            address.host,
            address.port,
            keepalive=_KEEPALIVE_S,
            clean_start=not session_s,
            properties=properties,
        )
        # An error in a callback would end paho's thread, and with it the connection.
        client.suppress_exceptions = True
        client.on_log = _log_error

    def start(self) -> None:
        """Begin to connect; callbacks may come from now on."""
        self.client.loop_start()

    @property
    def ready(self) -> bool:
        """Return whether there is a connection."""
        return self._ready.is_set()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for a connection; return whether there is one."""
        return self._ready.wait(timeout_s)

    def publish(self, messages: Sequence[_Outgoing], *, problem: str) -> None:
        """
        Publish messages with QoS 1, and wait for the broker's acknowledgements.

        A call that failed may be repeated: messages that it left on the way are waited
        for, and not sent twice.

        Raises:
            StoreError: The broker is away, refuses a message, or acknowledged none for
                some seconds.
        """
        if not self._ready.wait(_CONNECT_S):
            raise StoreError(f"{problem}: {self._where}: {self.problem}")
        while True:
            connections = self.connections
            self._publish_once(messages, problem=problem)
            if connections == self.connections:
                break
            # The broker may have been killed, and have lost what it acknowledged.

    def _publish_once(self, messages: Sequence[_Outgoing], *, problem: str) -> None:
        under_way = {one: mid for mid, one in self._pending.items()}
        wanted = set()
        for one in messages:
            if one not in under_way:
                under_way[one] = mid = self.send(one)
                self._pending[mid] = one
            wanted.add(under_way[one])
        while wanted:
            wanted.discard(self._take_one(problem=problem))

    def send(self, one: _Outgoing) -> int:
        """Send one message with QoS 1, and wait for nothing; return its packet id."""
        properties = self._user_properties()
        if one.properties:
            properties.UserProperty = list(one.properties)
        info = self.client.publish(one.topic, one.payload, qos=1, properties=properties)
        if info.rc == _queue_is_full():
            raise StoreError(f"{self._where}: too many messages are on the way")
        return int(info.mid)

    def close(self) -> None:
        """Wait until the broker has taken what was sent, and disconnect."""
        if self.ready:
            # mosquitto 2.0 drops packets that it has not read when a client leaves: 18
            # of 20 acknowledgements. Its answer to this one says that it has read all.
            processed = threading.Event()
            self.client.on_unsubscribe = lambda *_: processed.set()
            self.client.unsubscribe(_NO_TOPIC)
            processed.wait(_CONNECT_S)
        self.client.disconnect()
        self.client.loop_stop()

    def _take_one(self, *, problem: str) -> int:
        """Wait for an acknowledgement; return its packet id."""
        try:
            mid, reason = self._acknowledged.get(timeout=_TIMEOUT_S)
        except Empty:
            why = "no acknowledgement in time" if self.ready else self.problem
            raise StoreError(f"{problem}: {self._where}: {why}") from None
        message = self._pending.pop(mid, None)
        if message is None:
            return 0  # sent again after a reconnection
        if reason.is_failure:
            raise StoreError(f"{problem}: {message.topic}: {reason}")
        if reason.value == _NO_SUBSCRIBERS:
            self._warn(f"{message.topic} has no subscriber: the broker stores nothing")
        return mid

    def _warn(self, text: str) -> None:
        if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            log.warning("%s", text)

    def _on_connect(
        self, _c: Any, _u: Any, flags: Any, reason: Any, _p: Any = None
    ) -> None:
        if reason.is_failure:
            self.problem = f"the broker refuses the connection: {reason}"
            return
        self.connections += 1
        self.problem = ""
        self._connected(bool(flags.session_present))
        self._ready.set()

    def _on_connect_fail(self, _c: Any, _u: Any) -> None:
        self.problem = "no broker answers"

    def _on_disconnect(
        self, _c: Any, _u: Any, _flags: Any, reason: Any, _p: Any = None
    ) -> None:
        self._ready.clear()
        if not self.problem:
            self.problem = f"the connection is lost: {reason}"
        if reason.value == _TAKEN_OVER:
            self.problem = "another consumer with the same group and topic connected"
            log.warning("%s: %s", self._where, self.problem)
        self._lost()


def _log_error(_c: Any, _u: Any, _level: int, text: str) -> None:
    """Log an error in a callback; paho's other lines repeat what errors say here."""
    if text.startswith("Caught exception"):
        log.error("%s", text)


def _queue_is_full() -> int:
    from paho.mqtt.enums import MQTTErrorCode

    return int(MQTTErrorCode.MQTT_ERR_QUEUE_SIZE)


def _tls_context(address: MqttAddress) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.ssl_ca_certs or None)
        if address.ssl_certfile:
            context.load_cert_chain(address.ssl_certfile, address.ssl_keyfile or None)
    except (OSError, ssl.SSLError) as exc:
        problem = f"its files of TLS cannot be used: {exc.strerror or exc}"
        raise InputError(SOURCE, problem) from exc
    return context


def _plain_filter(topic: str) -> str:
    """Return a topic filter without `$share/GROUP/`."""
    if topic.startswith("$share/"):
        return topic.split("/", 2)[-1]
    return topic


class MqttSource:
    """
    Consume a topic as one client with a persistent session.

    Args:
        url: mqtt:// or mqtts:// address of the broker.
        topic: Topic filter, such as `plant/+/readings`; `$share/GROUP/FILTER` shares it
            with other clients, which gives up the order of a topic's messages.
        group: First part of the client id, which identifies the session; each consumer
            needs its own.
        dead_letters: Topic of the dead letters; `GROUP/dead-letters` if empty.
        session_s: Time for which the broker stores messages for a consumer that is
            away.

    Raises:
        InputError: The address is wrong, or the filter includes the dead letters.
    """

    def __init__(
        self,
        url: str,
        *,
        topic: str,
        group: str,
        dead_letters: str = "",
        session_s: int = SESSION_S,
    ) -> None:
        from paho.mqtt.client import topic_matches_sub

        self.name = topic
        self._dead = dead_letters or f"{group}/dead-letters"
        try:
            is_loop = topic_matches_sub(_plain_filter(topic), self._dead)
        except ValueError as exc:
            raise InputError("topic", f"{topic!r:.80} is no topic filter") from exc
        if is_loop:
            problem = f"{topic!r:.80} includes the dead letters, {self._dead!r:.80}"
            raise InputError("topic", problem)
        self._came = threading.Condition()
        # Of this connection: message and packet id, 0 for a message of QoS 0.
        self._queue: deque[tuple[Message, int]] = deque()
        # Of the connection before: the broker delivers them again, unless it lost them.
        self._left: deque[tuple[Message, int]] = deque()
        self._polled: list[int] = []
        self._polled_in = 0  # the connection that delivered them
        self._problem = ""
        self._subscribed = False
        self._connection = _Connection(
            read_address(url),
            client_id=f"{group}:{topic}",
            session_s=session_s,
            connected=self._on_connected,
            lost=self._on_lost,
            received=self._on_received,
        )
        self._connection.client.on_subscribe = self._on_subscribe
        self._connection.start()

    def poll(self, *, most: int, wait_s: float) -> Sequence[Message]:
        """
        Return up to `most` messages.

        Raises:
            StoreError: There is no connection, or the broker refuses the subscription.
        """
        with self._came:
            self._came.wait_for(lambda: bool(self._queue), timeout=wait_s)
            found = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
            if found:
                if self._polled_in != self._connection.connections:
                    self._polled = []
                self._polled_in = self._connection.connections
                self._polled += [mid for _, mid in found if mid]
        problem = self._connection.problem or self._problem
        if not found and problem:
            raise StoreError(f"the feed cannot be read: {problem}")
        return [message for message, _ in found]

    def add_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Publish messages to the topic of dead letters, acknowledged by the broker."""
        self._connection.publish(
            [
                _Outgoing(
                    self._dead,
                    one.message.value,
                    (("reason", one.reason), ("position", one.message.position)),
                )
                for one in letters
            ],
            problem="dead letters cannot be written",
        )

    def commit(self) -> None:
        """
        Acknowledge the polled messages.

        After a lost connection the broker delivers them again: then their
        acknowledgement would be one of the new delivery, and is left to it.
        """
        if self._connection.ready and self._polled_in == self._connection.connections:
            for mid in self._polled:
                self._connection.client.ack(mid, 1)
        self._polled = []

    def backlog(self) -> int:
        """Count the messages delivered and not acknowledged, none of the broker's."""
        return len(self._left) + len(self._queue) + len(self._polled)

    def partitions(self) -> int:
        """Return 1 while the broker delivers: it has confirmed the subscription."""
        return int(self._connection.ready and self._subscribed)

    def partition_count(self) -> int:
        """Return 1: a topic has no partitions."""
        return 1

    def caught_up(self) -> Mapping[int, int]:
        """Return nothing: MQTT does not say how many messages the broker holds."""
        return {}

    def close(self) -> None:
        """Disconnect; the broker stores the session."""
        self._connection.close()

    def _on_connected(self, had_session: bool) -> None:
        from paho.mqtt.subscribeoptions import SubscribeOptions

        if self._connection.connections > 1 and not had_session:
            log.warning(
                "the broker has lost the session of %s, and with it messages that it "
                "had acknowledged to their publishers",
                self.name,
            )
        options = SubscribeOptions(
            qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        )
        self._connection.client.subscribe(self.name, options=options)

    def _on_subscribe(self, _c: Any, _u: Any, _mid: int, reasons: Any, _p: Any) -> None:
        failed = [str(one) for one in reasons if one.is_failure]
        self._problem = f"{self.name}: {failed[0]}" if failed else ""
        self._subscribed = not failed

    def _on_lost(self) -> None:
        self._subscribed = False
        with self._came:
            if not self._left:  # else these were delivered again themselves
                self._left.extend((message, 0) for message, _ in self._queue)
            self._queue.clear()

    def _on_received(self, one: Any) -> None:
        message = Message(bytes(one.payload), one.topic)
        with self._came:
            self._queue.append((message, one.mid if one.qos else 0))
            self._came.notify()


class MqttFeed:
    """
    Publish events to an MQTT topic with QoS 1.

    Args:
        url: mqtt:// or mqtts:// address of the broker.
        topic: Topic of the events; `{key}` in it is replaced by the event's key.
        resend_s: After a reconnection, the events of so many seconds are published
            again, because a broker that was killed may have lost them; 0 for none.

    Raises:
        InputError: The address is wrong, or the topic has a wildcard.
    """

    def __init__(self, url: str, *, topic: str, resend_s: float = RESEND_S) -> None:
        if not topic or "+" in topic or "#" in topic:
            raise InputError("topic", f"{topic!r:.80} is not a topic to publish to")
        self._topic = topic
        self._resend_s = resend_s
        self._recent: deque[tuple[float, _Outgoing]] = deque()
        self._connection = _Connection(
            read_address(url),
            client_id=f"tollgate-{uuid.uuid4().hex}",
            connected=self._on_connected,
        )
        self._connection.start()

    def send(self, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
        """
        Publish events and wait for their acknowledgements.

        Raises:
            StoreError: The broker is away, or did not acknowledge all of them in time.
        """
        messages = list(self._outgoing(keys, events))
        while True:
            connections = self._connection.connections
            self._connection.publish(messages, problem="the feed cannot be written")
            now_s = time.monotonic()
            self._recent.extend((now_s, one) for one in messages)
            # A reconnection before this line did not find them among the recent ones.
            if connections in (0, self._connection.connections):
                break
        while self._recent and self._recent[0][0] < now_s - self._resend_s:
            self._recent.popleft()

    def close(self) -> None:
        """Disconnect: every send was acknowledged."""
        self._connection.close()

    def _outgoing(
        self, keys: Sequence[bytes], events: Sequence[bytes]
    ) -> Iterable[_Outgoing]:
        for key, event in zip(keys, events, strict=True):
            yield _Outgoing(_topic_of(self._topic, key), event)

    def _on_connected(self, _had_session: bool) -> None:
        if self._connection.connections == 1 or not self._recent:
            return
        # Of the time before the newest one: the broker may have been away for long.
        recent = list(self._recent)
        since_s = recent[-1][0] - self._resend_s
        for at_s, one in recent:
            if at_s >= since_s:
                self._connection.send(one)


def _topic_of(topic: str, key: bytes) -> str:
    """Put a key into a topic; characters that MQTT reserves become underscores."""
    if "{key}" not in topic:
        return topic
    text = key.decode("utf-8", "replace")
    for reserved in "+#/\0":
        text = text.replace(reserved, "_")
    return topic.replace("{key}", text)

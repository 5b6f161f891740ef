"""
Deliver alarms to a webhook: signed, retried, at least once.

Requests follow the Standard Webhooks specification: `webhook-id` is the idempotency
key, `webhook-timestamp` the time of the attempt, and `webhook-signature` an HMAC-SHA256
over both and the body. A receiver that is slow or away delays this process only: alarms
wait in their topic, which the consumer of readings goes on writing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import random
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from tollgate import __version__
from tollgate.errors import InputError
from tollgate.metrics import counter, histogram
from tollgate.stream.batch_consumer import BatchConsumer, ConsumerMetrics
from tollgate.stream.source import Message, Source
from tollgate.worker import JITTER, backoff_s

log = logging.getLogger(__name__)

BATCH_ALARMS = 100
IN_FLIGHT = 8
TIMEOUT_S = 10.0
GIVE_UP_S = 86_400.0
FIRST_RETRY_S, MOST_RETRY_S = 0.5, 60.0

SECRET_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)  # the specification's limits
# Answers about the content of an alarm: the same request cannot succeed later.
_REFUSED = frozenset({400, 413, 415, 422})
DELIVERY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class _AlarmIds(msgspec.Struct, frozen=True):
    """The part of an alarm that delivery needs; a header has the id."""

    alarm_id: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,256}\Z")]
    entities: dict[str, str]


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """
    Read the secrets that sign: one a line, as `whsec_` and base64 of 24 to 64 bytes.

    Several secrets each sign, so that a receiver can change to a new one.

    Raises:
        InputError: The file cannot be read, or a line is no secret.
    """
    try:
        lines = path.read_text("ascii").split()
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InputError(path, "is not plain text") from exc
    secrets = []
    for number, line in enumerate(lines, 1):
        try:
            secret = base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError) as exc:
            problem = f"is not {SECRET_PREFIX} and base64"
            raise InputError(path, problem, where=f"line {number}") from exc
        if not line.startswith(SECRET_PREFIX) or len(secret) not in _SECRET_BYTES:
            problem = f"is not {SECRET_PREFIX} and base64 of 24 to 64 bytes"
            raise InputError(path, problem, where=f"line {number}")
        secrets.append(secret)
    if not secrets:
        raise InputError(path, "has no secret")
    return tuple(secrets)


def signed_headers(
    body: bytes, *, alarm_id: str, secrets: Sequence[bytes], time_s: int
) -> dict[str, str]:
    """
    Return the headers that identify and sign a request.

    Args:
        time_s: Time of the attempt, seconds since the epoch.
    """
    signed = b".".join((alarm_id.encode(), str(time_s).encode(), body))
    signatures = (
        base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
        for secret in secrets
    )
    return {
        "webhook-id": alarm_id,
        "webhook-timestamp": str(time_s),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
        "Idempotency-Key": alarm_id,
    }


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirection as a failure: an alarm goes where it was configured to."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class Webhook:
    """
    Send alarms to one receiver; threads may share it.

    Args:
        url: http:// or https:// address; only its host is ever logged.
        secrets: See `read_secrets`.
        timeout_s: Longest wait for the receiver in one attempt.
        authority: File of the CA that signed the receiver's certificate; None for
            those of the system.

    Raises:
        InputError: The address or the file cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[bytes],
        timeout_s: float = TIMEOUT_S,
        authority: Path | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError("webhook url", "is not http:// or https:// and a host")
        try:
            context = ssl.create_default_context(cafile=authority)
        except (OSError, ssl.SSLError) as exc:
            raise InputError(authority, "is no file of certificates") from exc
        self.host = parts.hostname
        self._url = url
        self._secrets = tuple(secrets)
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._opener = urllib.request.build_opener(
            _NoRedirect, urllib.request.HTTPSHandler(context=context)
        )

    def send(self, body: bytes, *, alarm_id: str) -> int:
        """
        Send one alarm; return the receiver's status, or 0 without a response.

        It does not raise for a receiver that is away or refuses.
        """
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"tollgate/{__version__}",
            **signed_headers(
                body,
                alarm_id=alarm_id,
                secrets=self._secrets,
                time_s=int(self._now_s()),
            ),
        }
        request = urllib.request.Request(
            self._url, data=body, headers=headers, method="POST"
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return int(response.status)
        except urllib.error.HTTPError as exc:
            exc.close()
            return exc.code
        except (OSError, HTTPException, ValueError) as exc:
            log.debug("%s: %s", self.host, type(exc).__name__)
            return 0


class WebhookDeliverer(BatchConsumer):
    """
    Deliver the alarms of one source to one webhook.

    The alarms of one machine are delivered one after the other; those of several
    machines at the same time.

    Args:
        give_up_s: Time after which an alarm becomes a dead letter, from its first
            attempt.
        stopped: Ends the run, and each retry; alarms that are not delivered stay.

    Attributes:
        delivered: Number of alarms delivered since the start.
    """

    def __init__(
        self,
        source: Source,
        webhook: Webhook,
        *,
        metrics: WebhookMetrics,
        stopped: threading.Event,
        give_up_s: float = GIVE_UP_S,
        first_retry_s: float = FIRST_RETRY_S,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        super().__init__(
            source,
            name="webhook-deliverer",
            most=BATCH_ALARMS,
            metrics=metrics,
            stopped=stopped,
        )
        self._webhook = webhook
        self._metrics = metrics
        self._give_up_s = give_up_s
        self._first_retry_s = first_retry_s
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="webhook")
        self._decoder = msgspec.json.Decoder(_AlarmIds)
        self.delivered = 0

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _handle(self, messages: Sequence[Message]) -> bool:
        refused: dict[int, str] = {}
        lanes: dict[str, list[tuple[int, str]]] = {}
        for at, message in enumerate(messages):
            try:
                alarm = self._decoder.decode(message.value)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                refused[at] = "is no alarm"
                continue
            machine = next(iter(alarm.entities.values()), "")
            lanes.setdefault(machine, []).append((at, alarm.alarm_id))
        calls = [
            self._threads.submit(self._deliver_lane, messages, lane)
            for lane in lanes.values()
        ]
        for one in calls:
            refused |= one.result()
        if self._stopped.is_set():
            return False  # some may be undelivered; the next deliverer gets them all
        if not self._commit(messages, refused=refused):
            return False
        delivered = len(messages) - len(refused)
        self._metrics.count("delivered", delivered)
        self._metrics.count("dead_letter", len(refused))
        self.delivered += delivered
        return True

    def _deliver_lane(
        self, messages: Sequence[Message], lane: Sequence[tuple[int, str]]
    ) -> Mapping[int, str]:
        """Deliver the alarms of one machine; return the reason for each refused one."""
        refused = {}
        for at, alarm_id in lane:
            reason = self._deliver(messages[at].value, alarm_id=alarm_id)
            if reason:
                refused[at] = reason
            if self._stopped.is_set():
                break
        return refused

    def _deliver(self, body: bytes, *, alarm_id: str) -> str:
        """Repeat one alarm until it is accepted; return why it never was, or ""."""
        until_s = time.monotonic() + self._give_up_s
        failures = 0
        while not self._stopped.is_set():
            began_s = time.monotonic()
            status = self._webhook.send(body, alarm_id=alarm_id)
            self._metrics.attempted(status, time.monotonic() - began_s)
            if 200 <= status < 300:
                self._report("")
                return ""
            why = f"HTTP status {status}" if status else "no response"
            if status in _REFUSED:
                return f"{self._webhook.host}: refused with {why}"
            failures += 1
            self._count_retry("receiver")
            self._report(f"{self._webhook.host}: {why}")
            pause_s = backoff_s(
                failures, first_s=self._first_retry_s, most_s=MOST_RETRY_S
            ) * random.uniform(1 - JITTER, 1 + JITTER)
            if time.monotonic() + pause_s > until_s:
                return f"{self._webhook.host}: {why} after {failures} attempts"
            self._stopped.wait(pause_s)
        return ""


class WebhookMetrics(ConsumerMetrics):
    """Hold the metrics of one deliverer."""

    def __init__(self, product: str) -> None:
        super().__init__("webhook", product=product)
        registry = self.registry
        self._deliveries = counter("tollgate_webhook_alarms_total", registry)
        # A series that begins at 1 has no increase, so no alert would see the first.
        for outcome in ("delivered", "dead_letter"):
            self._deliveries.labels(product, outcome)
        self._attempts = counter("tollgate_webhook_attempts_total", registry)
        self._seconds = histogram(
            "tollgate_webhook_seconds", registry, buckets=DELIVERY_BUCKETS_S
        ).labels(product)

    def count(self, outcome: str, number: int) -> None:
        """Add alarms: `delivered` or `dead_letter`."""
        if number:
            self._deliveries.labels(self.product, outcome).inc(number)

    def attempted(self, status: int, seconds: float) -> None:
        """Count an attempt by its status, 0 without a response."""
        word = f"{status // 100}xx" if status else "none"
        self._attempts.labels(self.product, word).inc()
        self._seconds.observe(seconds)

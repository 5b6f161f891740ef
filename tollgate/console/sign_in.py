"""
Admit browsers to the console: by a secret, or on this machine without one.

A browser that sent the secret gets a cookie with an expiry time and a signature of it
by a key that is derived from the secret, never the secret itself. Its name depends on
the secret, too: a browser stores one cookie of a name for all ports of a host, where
several servers may run. After several wrong secrets an address has to wait.

Without a secret, only requests to a name of this machine are admitted, so that a web
page of another site cannot read the console through a name of its own that it resolves
to a loopback address (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tollgate.errors import InputError, os_errors

COOKIE = "tollgate_console"
VALID_S = 12 * 3600  # one working day
WRONG_AT_MOST = 5  # wrong secrets of one address in WRONG_WITHIN_S
WRONG_WITHIN_S = 60.0
_MOST_ADDRESSES = 1_000
_LEAST_SECRET = 16  # characters; a random one of 16 has 80 bits or more
_PURPOSE = b"tollgate console cookie"


def read_console_secret(path: Path) -> str:
    """
    Read the secret of the console from a file of one line.

    Raises:
        InputError: The file cannot be read, or is not one word of at least 16
            characters of ASCII.
    """
    with os_errors(InputError, path, "cannot be read"):
        content = path.read_bytes()
    try:
        words = content.decode("ascii").split()
    except UnicodeDecodeError as error:
        raise InputError(path, "is not one line of plain text") from error
    if len(words) != 1:
        raise InputError(path, "is not one line with the secret of the console")
    if len(words[0]) < _LEAST_SECRET:
        problem = f"the secret has {len(words[0])} characters"
        raise InputError(path, f"{problem}; at least {_LEAST_SECRET} are needed")
    return words[0]


class SignIn:
    """
    Decide which requests may see the console.

    Args:
        secret: Secret that a browser must send once; empty to admit requests to this
            machine's loopback names without one.
    """

    def __init__(self, secret: str = "") -> None:
        self._secret = secret.encode()
        self._key = hmac.digest(self._secret, _PURPOSE, "sha256")
        self._cookie = f"{COOKIE}_{self._sign('name')[:8]}"
        self._wrong: dict[str, list[float]] = {}
        self._changing = threading.Lock()

    @property
    def required(self) -> bool:
        """Return whether a browser has to send a secret."""
        return bool(self._secret)

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request with these headers may see the console."""
        if not self.required:
            return _names_loopback(headers.get("host", ""))
        # Cookies of other applications on this host may have any form.
        pairs = (one.partition("=") for one in headers.get("cookie", "").split(";"))
        sent = {name.strip(): value.strip() for name, _, value in pairs}
        expiry, _, signature = sent.get(self._cookie, "").partition(".")
        if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 12):
            return False
        signed = hmac.compare_digest(signature.encode(), self._sign(expiry).encode())
        return signed and time.time() < int(expiry)

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait before its next attempt, s."""
        now_s = time.monotonic()
        with self._changing:
            recent = self._recent(address, now_s)
        if len(recent) < WRONG_AT_MOST:
            return 0.0
        return recent[-WRONG_AT_MOST] + WRONG_WITHIN_S - now_s

    def check(self, secret: str, *, address: str) -> bool:
        """
        Compare a secret in constant time; count it against the address if it is wrong.

        The right secret is not accepted while the address has to wait.
        """
        right = hmac.compare_digest(secret.encode("utf-8", "replace"), self._secret)
        now_s = time.monotonic()
        with self._changing:  # requests that arrive together share the attempts
            recent = self._recent(address, now_s)
            if right and len(recent) < WRONG_AT_MOST:
                return True
            self._wrong.pop(address, None)  # the newest address comes last
            if len(self._wrong) >= _MOST_ADDRESSES:
                self._wrong.pop(next(iter(self._wrong)))
            self._wrong[address] = [*recent, now_s][-WRONG_AT_MOST:]
        return False

    def cookie(self) -> str:
        """Return the header that signs a browser in."""
        expiry = str(int(time.time()) + VALID_S)
        return self._set(f"{expiry}.{self._sign(expiry)}", seconds=VALID_S)

    def no_cookie(self) -> str:
        """Return the header that signs a browser out."""
        return self._set("", seconds=0)

    def _set(self, value: str, *, seconds: int) -> str:
        attributes = "Path=/console; HttpOnly; SameSite=Strict"
        return f"{self._cookie}={value}; Max-Age={seconds}; {attributes}"

    def _sign(self, expiry: str) -> str:
        return hmac.digest(self._key, expiry.encode(), "sha256").hex()

    def _recent(self, address: str, now_s: float) -> list[float]:
        """Return the times of an address's wrong secrets that still count."""
        wrong = self._wrong.get(address, [])
        return [one for one in wrong if now_s - one < WRONG_WITHIN_S]


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address of this machine or `localhost`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _names_loopback(host: str) -> bool:
    """Return whether a Host header names this machine; a port may follow the name."""
    if host.startswith("["):
        return is_loopback(host.partition("]")[0])
    return is_loopback(host.partition(":")[0].lower())

"""Check the API keys of callers, by the gateway's file of keys."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from tollgate.door.refusal import Refusal
from tollgate.errors import InputError
from tollgate.gateway.keys import read_keys

log = logging.getLogger(__name__)

ANYONE = "anyone"  # caller of a door without keys
_BEARER = b"bearer "
_CHALLENGE = {"www-authenticate": "Bearer"}


class Callers:
    """
    The callers that may use the door.

    Args:
        api_keys: File of lines `KEY CALLER;`; None lets everybody in.

    Raises:
        InputError: The file is not valid; see `read_keys`.
    """

    def __init__(self, api_keys: Path | None) -> None:
        self._path = api_keys
        self._stamp = _stamp(api_keys)
        self._callers = _read(api_keys)

    def identify(self, authorization: bytes | None) -> str:
        """
        Return the caller whose key a header has.

        Args:
            authorization: Value of the header `authorization`; None without one.

        Raises:
            Refusal: There are keys, and this is none of them.
        """
        if self._callers is None:
            return ANYONE
        if authorization is None or authorization[:7].lower() != _BEARER:
            problem = "the header authorization has no API key: send `Bearer KEY`"
            raise Refusal(401, problem, headers=_CHALLENGE)
        # A look-up of the key itself would take longer the more of it is right.
        caller = self._callers.get(_digest(authorization[7:].strip()))
        if caller is None:
            raise Refusal(401, "the API key is not valid", headers=_CHALLENGE)
        return caller

    def refresh(self) -> None:
        """Read the file again if it changed; an invalid one changes nothing."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._callers = _read(self._path)
        except InputError as error:
            log.warning("the API keys stay as they were: %s", error)
        else:
            log.info("read the API keys again")


def _read(path: Path | None) -> dict[bytes, str] | None:
    if path is None:
        return None
    return {_digest(key.encode()): caller for key, caller in read_keys(path).items()}


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=32).digest()


def _stamp(path: Path | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    # The mode, because a file that others may read is refused until a chmod.
    return found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode

"""
Every error Tollgate raises on purpose.

    TollgateError                     exit status 1
    ├── InputError                    exit status 2: a file, a flag or a field is wrong
    │   ├── SpecError                 features.yaml
    │   │   └── HookError             ... or its hook
    │   ├── PolicyError               policy.yaml
    │   └── RepositoryError           model repository: what is there does not fit
    ├── SetupError                    this machine lacks something; says what to install
    │   └── DeviceError               exit status 3: it lacks a GPU, or what drives it
    ├── ServerError                   tritonserver or Redis did not start, or died
    ├── ObjectStoreError              the store of a model repository did not answer
    │   └── ObjectChanged             ... somebody else wrote there first
    ├── StoreError                    the online store did not answer
    │   ├── OutcomeUnknown            ... and the events are applied, or not
    │   │   ├── StoreTimeout          it missed its deadline
    │   │   ├── StoreLost             the connection broke before the answer came
    │   │   └── StorePartial          a part of a cluster answered, another did not
    │   └── StoreCorrupt              an entity value does not match its checksum
    ├── JournalError                  a piece of the journal is damaged, or none at all
    ├── ConversionError               a model cannot be converted, and why
    │   ├── ParityError               converted, it does not answer as its source
    │   └── TradeError                made smaller, it loses more than it may
    └── ClientError                   a call failed
        ├── InvalidRequest            the request is wrong; sending it again is futile
        ├── DeadlineExceeded          no answer in time
        └── Unavailable               no server, or it refused to work
            └── Overloaded            ... for it has too much to do

Constructors take facts, keep them as attributes and write the message: what
happened, with which value, what to do about it.
"""

from __future__ import annotations

import hashlib
import traceback
from typing import TypeVar

from tollgate import __version__

Error = TypeVar("Error", bound=BaseException)


class TollgateError(Exception):
    """Base of every error that Tollgate raises on purpose."""

    exit_status = 1


class InputError(TollgateError):
    """
    Something a person handed in is wrong.

    Args:
        source: File, flag or request the value came from.
        problem: What is wrong, with the value, and what would be right.
        where: Column, key or line inside the source; empty when it is the whole.
    """

    exit_status = 2

    def __init__(self, source: object, problem: str, *, where: str = "") -> None:
        self.source = str(source)
        self.problem = problem
        self.where = where
        super().__init__(
            ": ".join(part for part in (self.source, where, problem) if part)
        )


class SpecError(InputError):
    """A features.yaml cannot be used."""


class HookError(SpecError):
    """A product's hook cannot be used, or failed."""


class PolicyError(InputError):
    """A policy.yaml cannot be used."""


class RepositoryError(InputError):
    """A model repository, a release or an artifact does not fit together."""


class SetupError(TollgateError):
    """
    This machine lacks something Tollgate needs.

    Args:
        missing: What is missing, as a person would say it.
        remedy: What to install or change.
    """

    exit_status = 2

    def __init__(self, missing: str, *, remedy: str) -> None:
        self.missing = missing
        self.remedy = remedy
        super().__init__(f"{missing}; {remedy}")


class DeviceError(SetupError):
    """This machine has no GPU, or not the library that builds for one."""

    exit_status = 3


class ServerError(TollgateError):
    """
    A child process did not start, or died.

    Args:
        process: Its name.
        problem: What happened.
        log: The last useful lines it wrote.
    """

    def __init__(self, process: str, problem: str, *, log: str = "") -> None:
        self.process = process
        self.problem = problem
        self.log = log
        super().__init__(f"{process}: {problem}" + (f"\n{log}" if log else ""))


class ObjectStoreError(TollgateError):
    """
    The object store that holds a model repository did not answer.

    Args:
        url: What was asked for.
        problem: What happened.
    """

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        self.problem = problem
        super().__init__(f"{url}: {problem}")


class ObjectChanged(ObjectStoreError):
    """Somebody else wrote first; nothing was overwritten."""


class StoreError(TollgateError):
    """
    The online store did not answer, or answered with an error.

    No event of the call was applied, unless it is an OutcomeUnknown.
    """


class OutcomeUnknown(StoreError):
    """The events were sent, and may be applied; applying them again is safe."""


class StoreTimeout(OutcomeUnknown):
    """The store missed its deadline."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        super().__init__(f"the store did not answer within {deadline_s * 1e3:g} ms")


class StoreLost(OutcomeUnknown):
    """
    The connection broke after something was sent and before the answer was there.

    Args:
        problem: What the connection said.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"the store was lost before it answered: {problem}")


class StorePartial(OutcomeUnknown):
    """
    Some nodes of a cluster answered and others did not.

    Args:
        answers: What came; for a lost key an empty value and status bytes 0.
        replies: Of the commands beside; an exception for each that is lost.
        lost: Per call, which of its keys have no answer.
        problem: What happened to the first of them.
    """

    def __init__(
        self,
        answers: list[tuple[list[bytes], bytes]],
        replies: list[object],
        *,
        lost: list[list[bool]],
        problem: str,
    ) -> None:
        self.answers = answers
        self.replies = replies
        self.lost = lost
        self.problem = problem
        keys = sum(map(len, lost))
        super().__init__(f"{sum(map(sum, lost))} of {keys} keys: {problem}")


class StoreCorrupt(StoreError):
    """
    An entity value does not match its checksum.

    Args:
        rows: Positions of the damaged values in the batch that was read.
    """

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        super().__init__(f"{len(rows)} entity value(s) do not match their checksum")


class JournalError(TollgateError):
    """
    A piece of the journal cannot be used.

    Args:
        piece: Which one.
        problem: What is wrong with it, with the value.
    """

    def __init__(self, piece: object, problem: str) -> None:
        self.piece = str(piece)
        self.problem = problem
        super().__init__(f"{self.piece}: {problem}")


class ConversionError(TollgateError):
    """A trained model cannot be converted; the message says why."""

    exit_status = 2


class ParityError(ConversionError):
    """A model was converted and does not answer as its source."""

    exit_status = 1


class TradeError(ConversionError):
    """A model was made smaller and loses more than was allowed."""

    exit_status = 1


class ClientError(TollgateError):
    """A call to the server failed."""


class InvalidRequest(ClientError):
    """The request is wrong; sending it again is futile."""

    exit_status = 2


class DeadlineExceeded(ClientError):
    """No answer came in time."""


class Unavailable(ClientError):
    """No server answers, or it refused to work."""


class Overloaded(Unavailable):
    """There is more to decide than can be in time; nothing was done."""


def install_remedy(extra: str) -> str:
    """
    Say how to install an extra: from a checkout, or from the file of a wheel.

    No name of ours is registered at PyPI, so no remedy may name a package there.
    """
    wheel = f"./dist/tollgate-{__version__}-py3-none-any.whl[{extra}]"
    return (
        f"install it with: pip install -e '.[{extra}]' in the checkout, or from a "
        f"wheel file: pip install '{wheel}'"
    )


def without_frames(error: Error) -> Error:
    """
    Let an exception that is kept as a value go of the frames that it came through.

    They hold those of their callers, and so all that these work on, until the garbage
    collector finds the cycle: in a step, a batch of requests in shared memory.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def trace_of(error: BaseException) -> str:
    """Tell where an exception came from, and its kind; not what it says."""
    parts = []
    seen: BaseException | None = error
    while seen is not None:
        digest = hashlib.sha256(_words_of(seen)).hexdigest()[:8]
        where = "".join(traceback.format_tb(seen.__traceback__))
        parts.append(f"{type(seen).__name__}, its words hash to {digest}\n{where}")
        seen = seen.__cause__ or seen.__context__
    return "caused by ".join(parts)


def _words_of(error: BaseException) -> bytes:
    """Give an error's words; none of one that cannot be put into words."""
    try:
        return str(error).encode("utf-8", "replace")
    except Exception:  # noqa: BLE001 - foreign classes define their own words
        return b""

"""
Define every error that Tollgate raises on purpose.

    TollgateError                     exit status 1
    ├── InputError                    exit status 2: a file, a flag or a field is wrong
    │   ├── ArgumentError             an argument of a call; the command line's option
    │   ├── SpecError                 features.yaml
    │   │   └── HookError             ... or its hook
    │   ├── PolicyError               policy.yaml
    │   └── RepositoryError           model repository: its contents do not fit
    ├── SetupError                    this machine lacks something; says what to install
    │   └── DeviceError               exit status 3: it lacks a GPU, or its driver
    ├── ServerError                   tritonserver or Redis did not start, or died
    ├── ObjectStoreError              object store of a model repository did not respond
    │   └── ObjectChanged             ... another writer wrote there first
    ├── StoreError                    the online store did not respond
    │   └── OutcomeUnknown            ... and the events are applied, or not
    │       ├── StoreTimeout          it missed its deadline
    │       ├── StoreLost             the connection broke before the response came
    │       └── StorePartial          part of a cluster responded, another part did not
    ├── DecisionError                 a server did not decide; a retry may succeed
    ├── JournalError                  a piece of the journal is damaged, or none at all
    └── ConversionError               a model cannot be converted, and why
        ├── ParityError               the converted model differs from its source
        └── TradeError                the smaller model loses more than it may

The client's errors are in `tollgate_client.errors`.

Constructors take facts, store them as attributes and write the message: the event, the
value, the remedy.
"""

from __future__ import annotations

import contextlib
import hashlib
import traceback
from collections.abc import Iterator
from typing import TypeVar

from tollgate import __version__

Error = TypeVar("Error", bound=BaseException)


class TollgateError(Exception):
    """Base of every error that Tollgate raises on purpose."""

    exit_status = 1


class InputError(TollgateError):
    """
    Input from a person is invalid.

    Args:
        source: File, flag or request the value came from.
        problem: The error with the value, and the valid choice.
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


class ArgumentError(InputError):
    """
    An argument of a call is invalid; the command line reports it as its option.

    Args:
        source: Name of the argument, such as "review_rate"; several are separated by
            ", ".
        problem: The error with the value, and the valid choice.
    """


class SpecError(InputError):
    """A features.yaml cannot be used."""


class HookError(SpecError):
    """A product's hook cannot be used, or it failed."""


class PolicyError(InputError):
    """A policy.yaml cannot be used."""


class RepositoryError(InputError):
    """A model repository, a release or an artifact is inconsistent."""


class SetupError(TollgateError):
    """
    This machine lacks something that Tollgate needs.

    Args:
        missing: Description of the gap, such as "no server runs in .tollgate".
        remedy: Instruction to install or change something.
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
    """A child process did not start, or died; `log` has its last useful lines."""

    def __init__(self, process: str, problem: str, *, log: str = "") -> None:
        self.process = process
        self.problem = problem
        self.log = log
        super().__init__(f"{process}: {problem}" + (f"\n{log}" if log else ""))


class ObjectStoreError(TollgateError):
    """The object store that holds a model repository did not respond."""

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        self.problem = problem
        super().__init__(f"{url}: {problem}")


class ObjectChanged(ObjectStoreError):
    """Another writer wrote first; nothing was overwritten."""


class StoreError(TollgateError):
    """
    The online store did not respond, or responded with an error.

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
    """The connection broke after a request was sent and before its response came."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"the store was lost before it answered: {problem}")


class StorePartial(OutcomeUnknown):
    """
    Some nodes of a cluster responded and others did not.

    Args:
        answers: Responses that came; for a lost key an empty value and status bytes 0.
        replies: Responses to the call's other commands; an exception for each lost one.
        lost: Per call, its keys without a response.
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


class DecisionError(TollgateError):
    """A server did not decide; the same request may succeed later."""


class JournalError(TollgateError):
    """A piece of the journal cannot be used."""

    def __init__(self, piece: object, problem: str) -> None:
        self.piece = str(piece)
        self.problem = problem
        super().__init__(f"{self.piece}: {problem}")


@contextlib.contextmanager
def os_errors(
    kind: type[InputError | JournalError], source: object, problem: str
) -> Iterator[None]:
    """Raise an OSError of the block as `kind`: SOURCE: PROBLEM: the system's reason."""
    try:
        yield
    except OSError as exc:
        raise kind(source, f"{problem}: {exc.strerror}") from exc


class ConversionError(TollgateError):
    """A trained model cannot be converted; the message gives the reason."""

    exit_status = 2


class ParityError(ConversionError):
    """A converted model's probabilities differ from its source's."""

    exit_status = 1


class TradeError(ConversionError):
    """A smaller model loses more than was allowed."""

    exit_status = 1


def install_remedy(extra: str) -> str:
    """
    Describe how to install an extra: from a checkout, or from the file of a wheel.

    PyPI has no package of ours, so no remedy may name a package there.
    """
    wheel = f"./dist/tollgate-{__version__}-py3-none-any.whl[{extra}]"
    return (
        f"install it with: pip install -e '.[{extra}]' in the checkout, or from a "
        f"wheel file: pip install '{wheel}'"
    )


def part_remedy(distribution: str, folder: str, *, extra: str = "") -> str:
    """Describe how to install another distribution of this project, by its folder."""
    source, wheel = (
        f"./{folder}",
        f"./dist/{distribution}-{__version__}-py3-none-any.whl",
    )
    if extra:
        source, wheel = f"'{source}[{extra}]'", f"'{wheel}[{extra}]'"
    return (
        f"install it with: pip install -e {source} in the checkout, or from a wheel "
        f"file: pip install {wheel}"
    )


def without_frames(error: Error) -> Error:
    """
    Drop the frames from an exception that is stored as a value.

    Frames hold those of their callers and all their local values, until the garbage
    collector finds the cycle: in a step, a batch of requests in shared memory.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def trace_of(error: BaseException) -> str:
    """Return an exception's traceback and type, with a hash in place of its message."""
    parts = []
    seen: BaseException | None = error
    while seen is not None:
        digest = hashlib.sha256(_words_of(seen)).hexdigest()[:8]
        where = "".join(traceback.format_tb(seen.__traceback__))
        parts.append(f"{type(seen).__name__}, its words hash to {digest}\n{where}")
        seen = seen.__cause__ or seen.__context__
    return "caused by ".join(parts)


def _words_of(error: BaseException) -> bytes:
    """Encode an error's message; return b"" if the message cannot be produced."""
    try:
        return str(error).encode("utf-8", "replace")
    except Exception:  # noqa: BLE001 - classes of other libraries may raise here
        return b""

"""
Export the gateway's nginx metrics to Prometheus, counted from nginx' request log.

nginx itself counts nothing by reason or caller, and Debian's nginx has no module that
does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

import msgspec

from tollgate.errors import InputError, os_errors
from tollgate.gateway.template import Limits
from tollgate.metrics import counter, gauge, histogram
from tollgate.steps.decision_metrics import STEP_BUCKETS_S

# Read the request log of nginx as it grows, and keep the file small.
#
# nginx appends whole buffers, so it never waits for the reader; if it cannot write the
# file, it goes on serving without it.

_TRUNCATE_BYTES = 4 << 20  # the file is truncated once so much was read
_READ_BYTES = 4 << 20  # per read: 70,000 requests
_LINE_BYTES = 64 << 10  # longer text without a line end is not a line


class RequestsLog:
    """
    Read the new lines of the file at each look.

    When more than 4 MiB was read, it is cut off as `copytruncate` of logrotate does it:
    nginx goes on at the beginning of the file. A buffer that nginx writes in the
    microseconds between the look and the cut is lost.

    Args:
        path: The file. Its present content was counted before, and is skipped; the file
            need not exist yet.

    Raises:
        InputError: The file cannot be opened for reading and truncating.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._file = self._open()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def read(self) -> bytes:
        """
        Read the lines that were written since the last look.

        Returns:
            Complete lines with their ends, 4 MiB at most; empty if there are none.

        Raises:
            InputError: The file cannot be opened, read or truncated.
        """
        if self._file is None:
            self._file = self._open()
        if self._file is None:
            return b""
        with os_errors(InputError, self._path, "cannot be read"):
            return self._read_new(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._rest = b""

    def _open(self) -> FileIO | None:
        try:
            return self._path.open("r+b", buffering=0)
        except FileNotFoundError:
            return None
        except OSError as exc:
            problem = f"cannot be opened for reading and cutting: {exc.strerror}"
            raise InputError(self._path, problem) from exc

    def _read_new(self, file: FileIO) -> bytes:
        at = file.tell()
        if os.fstat(file.fileno()).st_size < at:  # another process truncated it
            at = file.seek(0)
            self._rest = b""
        read = file.read(_READ_BYTES)
        text = self._rest + read
        whole = text.rfind(b"\n") + 1
        self._rest = text[whole:][:_LINE_BYTES]
        at += len(read)
        if at >= _TRUNCATE_BYTES and not self._rest:
            _truncate(file, at)
        elif not read and self._replaced(file):
            self.close()
        return text[:whole]

    def _replaced(self, file: FileIO) -> bool:
        """Return whether the path now names another file, or none."""
        try:
            there = self._path.stat()
        except OSError:
            return True
        return not os.path.samestat(there, os.fstat(file.fileno()))


def _truncate(file: FileIO, at: int) -> None:
    """Truncate the file if all of it was read."""
    if os.fstat(file.fileno()).st_size == at:
        file.truncate(0)
        file.seek(0)


# The words in nginx.conf; a test compares them.
ASKED = ("decision", "bulk", "health", "metadata", "other")
REFUSALS = (
    *("unauthenticated", "denied", "malformed", "harmful", "suspended", "size"),
    *("rate", "overloaded", "no_server"),
)
OUTCOMES = ("passed", "gave_up", *REFUSALS)
# By number: https://grpc.io/docs/guides/status-codes/
STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED"),
    *("NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"),
    *("FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL"),
    *("UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
CALLERS = 100  # callers that have a series; the others share one
_OTHERS = "(others)"  # no caller can have this name
_SUBJECT_CHARS = 128  # of the subject of a certificate
_NO_STATUS = {"": "", **{str(code): name for code, name in enumerate(STATUSES)}}

# Kind of request, outcome, caller, gRPC status, seconds.
_Line = tuple[str, str, str, str, float]
_LINES = msgspec.json.Decoder(_Line)


class GatewayMetrics:
    """
    Count requests by kind, outcome and caller.

    Args:
        path: The file that nginx writes.
        limits: The limits of the gateway's configuration; None if they are not known
            here.

    Raises:
        InputError: The file cannot be opened for reading and truncating.
    """

    def __init__(self, path: Path, *, limits: Limits | None = None) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = registry = CollectorRegistry()
        self._log = RequestsLog(path)
        self._callers: set[str] = set()
        self._requests = counter("tollgate_gateway_requests_total", registry)
        self._seconds = histogram(
            "tollgate_gateway_request_seconds", registry, buckets=STEP_BUCKETS_S
        )
        self._unreadable = counter("tollgate_gateway_unreadable_lines_total", registry)
        if limits is not None:
            self._export_limits(limits)

    def update(self) -> None:
        """
        Count the lines that nginx wrote since the last update.

        Raises:
            InputError: The file cannot be read.
        """
        self.count(self._log.read())

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def count(self, text: bytes) -> None:
        """Count lines in the format that nginx writes."""
        found: Counter[tuple[str, str, str, str]] = Counter()
        for line in self._lines(text):
            asked, outcome, caller, status, seconds = line
            if asked not in ASKED or outcome not in OUTCOMES:
                self._unreadable.inc()
                continue
            found[asked, outcome, caller, status] += 1
            self._seconds.labels(asked, outcome).observe(seconds)
        for (asked, outcome, caller, status), number in found.items():
            labels = (self._caller(caller), _NO_STATUS.get(status, "UNKNOWN"))
            self._requests.labels(asked, outcome, *labels).inc(number)

    def _lines(self, text: bytes) -> Iterable[_Line]:
        try:
            return _LINES.decode_lines(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._good_lines(text)

    def _good_lines(self, text: bytes) -> Iterator[_Line]:
        """Decode line by line; count and skip lines that cannot be decoded."""
        for line in text.split(b"\n"):
            try:
                if line:
                    yield _LINES.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self._unreadable.inc()

    def _caller(self, name: str) -> str:
        """Return a caller's label; all callers after the first hundred share one."""
        name = name[:_SUBJECT_CHARS]
        if name in self._callers or not name:
            return name
        if len(self._callers) >= CALLERS:
            return _OTHERS
        self._callers.add(name)
        return name

    def _export_limits(self, limits: Limits) -> None:
        self._under_way = gauge("tollgate_gateway_in_flight_limit", self.registry)
        self._bound(limits.in_flight, limits.caller_in_flight, limits.bulk_in_flight)
        rate = gauge("tollgate_gateway_caller_rate_limit", self.registry)
        rate.set(limits.rate)

    def read_bounds(self, path: Path) -> None:
        """
        Read the limits that 90-watch.sh computed from the number of servers.

        Args:
            path: File with three numbers, separated by spaces: for all callers, for one
                caller, for bulk requests. While it is missing or invalid, the previous
                limits stay.
        """
        try:
            every, caller, bulk = map(int, path.read_text().split())
        except (OSError, ValueError):
            return
        self._bound(every, caller, bulk)

    def _bound(self, every: int, caller: int, bulk: int) -> None:
        for of, number in (("all", every), ("caller", caller), ("bulk", bulk)):
            self._under_way.labels(of).set(number)


def outcomes_of(metrics: GatewayMetrics, *, caller: str) -> Counter[tuple[str, str]]:
    """Count a caller's requests by outcome and status."""
    found: Counter[tuple[str, str]] = Counter()
    for family in metrics.registry.collect():
        for sample in family.samples:
            if (
                sample.name == "tollgate_gateway_requests_total"
                and sample.labels["caller"] == caller
            ):
                key = sample.labels["outcome"], sample.labels["status"]
                found[key] += int(sample.value)
    return found

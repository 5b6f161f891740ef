"""Log lines as JSON objects, one each, for whatever collects them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone

import msgspec


class JsonFormatter(logging.Formatter):
    """
    Formats a record as one line of JSON: time, level, logger, message, release.

    Args:
        release: Names what is served at the moment.
    """

    def __init__(self, *, release: Callable[[], str]) -> None:
        super().__init__()
        self._release = release

    def format(self, record: logging.LogRecord) -> str:
        """Write one line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "release": self._release(),
        }
        trace = getattr(record, "trace_id", "")
        if trace:
            line["trace_id"] = trace
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()

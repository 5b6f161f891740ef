"""Format log records as JSON objects, one per line, for a log collector."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone

import msgspec


class JsonFormatter(logging.Formatter):
    """
    Format a record as one line of JSON: time, level, logger, message, release.

    Args:
        release: Returns the name of the release that is served now.
    """

    def __init__(self, *, release: Callable[[], str]) -> None:
        super().__init__()
        self._release = release

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
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

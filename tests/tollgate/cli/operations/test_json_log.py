"""Log lines for machines."""

from __future__ import annotations

import json
import logging

from tollgate.cli.operations.supervised_server import JsonFormatter


def test_a_record_is_one_line_with_the_release() -> None:
    """Also one with a line break and an exception."""
    formatter = JsonFormatter(release=lambda: "fraud-7")
    try:
        raise ValueError("no")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord(
        "tollgate.x", logging.ERROR, "x.py", 1, "a\n%s", ("b",), info
    )
    record.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    text = formatter.format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "a\nb"
    assert line["level"] == "error"
    assert line["release"] == "fraud-7"
    assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert line["time"].endswith("+00:00")
    assert "ValueError: no" in line["exception"]

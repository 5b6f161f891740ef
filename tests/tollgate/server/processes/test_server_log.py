"""Tests of what is shown of a log."""

from __future__ import annotations

from pathlib import Path

from tollgate.server.processes.server_log import useful_lines

LOG = """\
E1121 08:54:26.541107 5088 server.cc:241] "CudaDriverHelper has not been initialized."
I1121 08:54:26.541970 5088 model_lifecycle.cc:472] "loading: echo:1"
+------------------+------+
| Repository Agent | Path |
+------------------+------+

Error: Failed to initialize NVML
E1121 08:54:26.542395 5088 server.cc:642] "Address already in use"
I1121 08:54:27.901802 5088 server.cc:305] "Waiting for in-flight requests to complete."
error: failed to start GRPC service
"""


def test_errors_are_shown_without_harmless_noise(tmp_path: Path) -> None:
    """A machine without GPU logs errors on every start; they are left out."""
    log = tmp_path / "log"
    log.write_text(LOG)
    assert useful_lines(log).splitlines() == [
        "Address already in use",
        "error: failed to start GRPC service",
    ]


def test_the_reason_of_redis_is_shown(tmp_path: Path) -> None:
    """Its banner is left out, and the process id and date before each line."""
    log = tmp_path / "log"
    log.write_text(
        "15248:C 21 Nov 2026 09:23:50.637 # oO0OoO0OoO0Oo Redis is starting\n"
        "15248:C 21 Nov 2026 09:23:50.638 # Configuration loaded\n"
        "15248:M 21 Nov 2026 09:23:50.638 * monotonic clock: POSIX clock_gettime\n"
        "15248:M 21 Nov 2026 09:23:50.638 # Can't open the append-only file\n"
    )
    assert useful_lines(log) == "Can't open the append-only file"


def test_only_this_start_counts(tmp_path: Path) -> None:
    """What an earlier server wrote is not shown as this one's failure."""
    log = tmp_path / "log"
    log.write_text(LOG + "the newest line\n")
    assert useful_lines(log, offset=len(LOG)) == "the newest line"


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """A server that never wrote has no last words."""
    assert useful_lines(tmp_path / "log") == ""

"""The table of the load test of the console, and its limit."""

from __future__ import annotations

from msgspec.structs import replace

from loadtests.console import MOST_RATIO, Turn, ratio, ratios, to_markdown

OPEN = Turn(
    open=True,
    requests=4_000,
    failed=0,
    p50_ms=2.0,
    p99_ms=11.0,
    polls=20,
    poll_p99_ms=9.0,
    supervisor_cpu=0.031,
)
CLOSED = replace(OPEN, open=False, p99_ms=10.0, polls=0, poll_p99_ms=0.0)


def test_each_pair_is_a_ratio_of_open_to_closed() -> None:
    """In whichever order its turns ran; the result is the median of the pairs."""
    turns = [OPEN, CLOSED, CLOSED, replace(OPEN, p99_ms=20.0), OPEN, CLOSED]
    assert ratios(turns) == [1.1, 2.0, 1.1]
    assert ratio(turns) == MOST_RATIO
    text = to_markdown(turns)
    assert "| open | 4,000 | 0 | 2.00 | 11.00 | 20 | 9.0 | 3.1 |" in text
    assert "| closed | 4,000 | 0 | 2.00 | 10.00 |  |  | 3.1 |" in text
    assert text[-1].endswith("pairs: 1.10 (1.10 … 2.00), limit 1.1")

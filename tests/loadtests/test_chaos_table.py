"""The table of the chaos runs, as arithmetic."""

import numpy as np

from loadtests.chaos import INJECTIONS, SERVER_FAULTS, Calls, to_markdown


def test_each_trouble_has_a_beginning_and_an_end():
    """By name."""
    assert [fault.name for fault in SERVER_FAULTS] == list(INJECTIONS)


def test_shares_and_percentiles_are_of_all_calls():
    """1,000 calls: 990 of the model in 10 ms, 6 cached, 3 late fallbacks, 1 lost."""
    latency_s = np.full(1000, 0.010)
    source = np.zeros(1000, np.int8)
    source[500:506] = 1
    source[506:509] = 2
    latency_s[506:509] = [0.0549, 0.055, 0.0551]
    source[509], latency_s[509] = -1, np.inf
    calls = Calls(
        latency_s=latency_s, source=source, fault_start=500, fault_end=520, load=1.25
    )
    text = to_markdown([(SERVER_FAULTS[1], calls)], "measured", deadline_s=0.05)
    head, rule, row, *rest = text.splitlines()
    assert rest == ["", "measured"]
    assert rule.count("|") == head.count("|") == row.count("|")
    assert "within 50 + 5 ms" in head
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:7] == ["1000", "99.9 %", "99.8 %", "10.0", "10.0", "55.1"]
    assert float(cells[7]) > 1e9
    assert cells[8:] == ["99 %", "0.6 %", "0.3 %", "50 %", "1.2"]


def test_all_is_said_of_all_only():
    """One of 100,000 that is missing shows."""
    source = np.zeros(100_000, np.int8)
    latency_s = np.full(100_000, 0.01)
    source[7] = -1
    calls = Calls(
        latency_s=latency_s, source=source, fault_start=0, fault_end=0, load=0.0
    )
    row = to_markdown([(SERVER_FAULTS[0], calls)], "", deadline_s=0.05).splitlines()[2]
    assert row.split(" | ")[2] == "99.99 %"
    assert row.endswith("| none | 0.0 |")

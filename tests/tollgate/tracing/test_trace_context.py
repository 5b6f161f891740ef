"""Which requests are traced, and what their spans are called."""

from __future__ import annotations

import pytest

from tollgate.tracing.context import (
    TraceContext,
    read_traceparent,
    sample,
    span_id,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(("flags", "recorded"), [("01", True), ("00", False)])
def test_the_callers_word_counts(flags: str, recorded: bool) -> None:
    """The last bit of a header says whether its caller records the trace."""
    found = read_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
    assert found == (TraceContext(TRACE, SPAN), recorded)


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01 ",
    ],
)
def test_what_the_standard_forbids_is_no_trace(header: str) -> None:
    """A version ff, ids of zeros, capitals, or something missing."""
    assert read_traceparent(header) is None


def test_one_of_so_many_is_picked_by_its_id() -> None:
    """About a hundredth of many ids, and an id always or never; 0 picks none."""
    ids = [b"t-%d" % number for number in range(20_000)]
    picked = {one for one in ids if sample(one, rate=100)}
    # 200 are expected; 5 standard deviations of a binomial are 70.
    assert 130 < len(picked) < 270
    assert {one for one in ids if sample(one, rate=100)} == picked
    assert all(sample(one, rate=1) for one in ids[:100])
    assert not any(sample(one, rate=0) for one in ids[:100])


def test_steps_agree_on_a_span_without_speaking() -> None:
    """The same names give the same number in a trace, others another one."""
    context = TraceContext(TRACE, SPAN)
    assert span_id(context, 1, "x") == span_id(TraceContext(TRACE, SPAN), 1, "x")
    others = {span_id(context, 1, "x"), span_id(context, 2, "x"), span_id(context, 1)}
    others.add(span_id(TraceContext(TRACE), 1, "x"))
    assert len(others) == 4
    assert all(len(bytes.fromhex(one)) == 8 for one in others)

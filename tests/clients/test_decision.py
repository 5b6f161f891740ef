"""An answer is split into rows, and what is no answer is told apart."""

import numpy as np
import pytest

from tollgate_client import ClientError, Decision, Decisions, InvalidRequest
from tollgate_client.decisions import outcomes_of


def answer(decision, error):
    """An answer of some rows."""
    rows = len(decision)
    return Decisions(
        decision=np.array(decision, np.str_),
        score=np.linspace(0, 1, rows, dtype=np.float32),
        reason_codes=[("A",)] * rows,
        degraded=np.arange(rows, dtype=np.uint32),
        error=np.array(error, np.str_),
        release=np.array(["fraud-1"] * rows, np.str_),
        latency_s=np.zeros(rows),
    )


def test_rows_become_decisions_mistakes_and_time_that_ran_out():
    """The first two are the caller's to know, the third is the server's trouble."""
    good, bad, late = outcomes_of(
        answer(
            ["decline", "", ""], ["", "amount: -1.0: is negative", "deadline_us: no"]
        ),
        rows=3,
    )
    assert good == Decision(
        decision="decline",
        source="model",
        score=0.0,
        reason_codes=("A",),
        release="fraud-1",
    )
    assert isinstance(bad, InvalidRequest)
    assert type(late) is ClientError


@pytest.mark.parametrize(
    ("decision", "rows", "words"),
    [
        (["approve"], 2, "2 rows were asked and 1 are answered"),
        (["allow"], 1, "'allow' is none of approve, review, decline"),
        ([""], 1, "'' is none of approve"),
    ],
)
def test_what_is_no_answer_is_trouble_of_the_server(decision, rows, words):
    """Never a decision that a caller would not know."""
    with pytest.raises(ClientError, match=words):
        outcomes_of(answer(decision, [""] * len(decision)), rows=rows)

"""
The client against a real tritonserver.

The step behind it answers by rule: below 100 approve, else decline; score is the
amount / 1000; reasons are customer and terminal; degraded is the event time modulo
128; release shows the request's parameters; a negative amount is a bad row; 666
in the first row takes half a second.
"""

import json

import numpy as np
import pytest

from tollgate_client import Client, DeadlineExceeded, InvalidRequest, Unavailable, join
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

pytestmark = pytest.mark.slow

PATIENT_S = 30


def columns(amounts):
    """Make rows with given amounts."""
    rows = range(len(amounts))
    return {
        "transaction_id": [f"t{row}" for row in rows],
        "customer_id": [f"ç{row}" for row in rows],
        "terminal_id": [f"m{row % 7}" for row in rows],
        "amount": np.asarray(amounts, dtype=np.float64),
        "event_time": np.arange(len(amounts)),
    }


@pytest.fixture(scope="module")
def client(echo_server):
    """Connect with a timeout that a busy machine keeps."""
    with Client(echo_server, timeout_s=PATIENT_S) as connected:
        yield connected


def test_answers_come_back_row_by_row(client):
    """Every output arrives in its type and row."""
    answer = client.decide(columns([50, 100, 250.5]))
    assert answer.decision.tolist() == ["approve", "decline", "decline"]
    assert answer.score.tolist() == np.float32([0.05, 0.1, 0.2505]).tolist()
    assert answer.reason_codes == [("ç0", "m0"), ("ç1", "m1"), ("ç2", "m2")]
    assert answer.degraded.tolist() == [0, 1, 2]
    assert answer.error.tolist() == ["", "", ""]
    assert (answer.latency_s > 0).all()


def test_parameters_reach_the_step(client):
    """The step sees dry_run and the time that is left."""
    dry = client.decide(columns([1]), dry_run=True, deadline_s=20.5)
    assert json.loads(dry.release[0]) == {"deadline_us": 20_500_000, "dry_run": True}
    wet = client.decide(columns([1]))
    assert json.loads(wet.release[0]) == {"deadline_us": PATIENT_S * 1_000_000}


def test_a_bad_row_leaves_its_neighbours_answered(client):
    """Its decision is empty, its score NaN, its error in words."""
    answer = client.decide(columns([50, -1, 150]))
    assert answer.decision.tolist() == ["approve", "", "decline"]
    assert np.isnan(answer.score).tolist() == [False, True, False]
    assert answer.error.tolist() == ["", "amount: -1 of ç1: must be 0 or more", ""]


def test_bad_rows_only_are_an_invalid_request_with_a_line_each(client):
    """The step's words arrive without Triton's prefix."""
    with pytest.raises(InvalidRequest) as caught:
        client.decide(columns([-1, -2]))
    assert str(caught.value).splitlines() == [
        "row 0: amount: -1 of ç0: must be 0 or more",
        "row 1: amount: -2 of ç1: must be 0 or more",
    ]


def test_long_words_for_32_bad_rows_arrive_whole(client):
    """Percent-encoded they are over the 16 KiB that gRPC allows by default."""
    given = columns([-1] * 32)
    given["customer_id"] = ["é" * 90] * 32
    with pytest.raises(InvalidRequest) as caught:
        client.decide(given)
    assert len(str(caught.value).encode()) > 5_000
    assert len(str(caught.value).splitlines()) == 32


def test_an_answer_after_the_deadline_is_not_waited_for(client):
    """The error names the time that was given."""
    with pytest.raises(DeadlineExceeded, match="no answer within 100 ms"):
        client.decide(columns([666]), deadline_s=0.1)


def test_an_unknown_product_is_unavailable(echo_server):
    """Triton's words name it."""
    with (
        Client(echo_server, product="credit", timeout_s=PATIENT_S) as other,
        pytest.raises(Unavailable, match="unknown model: 'credit' is not found"),
    ):
        other.decide(columns([1]))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (
            {name: FRAUD_INPUTS[name] for name in ("transaction_id", "amount")},
            r"^expected 5 inputs but got 2 .*missing required input",
        ),
        (
            {**FRAUD_INPUTS, "amount": "INT64"},
            r"^inference input 'amount' data-type is 'INT64', but .* expects 'FP64'",
        ),
    ],
)
def test_tritons_refusals_keep_its_words(echo_server, inputs, words):
    """A client of another contract is told so by the server."""
    given = {**columns([1]), "amount": [1]}
    with (
        Client(echo_server, inputs=inputs, timeout_s=PATIENT_S) as other,
        pytest.raises(InvalidRequest, match=words),
    ):
        other.decide({name: given[name] for name in inputs})


def test_many_rows_are_answered_in_order(client):
    """1,000 rows by 32, eight on their way: the same answers as one by one."""
    amounts = np.random.default_rng(0).uniform(0, 200, 1000).round(2)
    parts = list(client.decide_many(columns(amounts), in_flight=8))
    assert [len(part) for part in parts] == [32] * 31 + [8]
    answer = join(parts)
    assert answer.score.tolist() == (amounts / 1000).astype(np.float32).tolist()
    assert [codes[0] for codes in answer.reason_codes] == [f"ç{i}" for i in range(1000)]


def test_a_request_of_bad_rows_costs_no_other_row_its_answer(client):
    """Rows 4 … 7 are one request of bad rows; they come back as rows with errors."""
    amounts = [1.0, 2, 3, 4, -5, -6, -7, -8, 9, -10]
    answer = join(list(client.decide_many(columns(amounts), batch_rows=4)))
    bad = [amount < 0 for amount in amounts]
    assert (answer.error != "").tolist() == bad
    assert np.isnan(answer.score).tolist() == bad
    assert answer.error[5] == "amount: -6 of ç5: must be 0 or more"
    assert answer.decision.tolist()[8] == "approve"


def test_a_late_answer_stops_the_run_after_the_answers_before_it(client):
    """What was answered is handed out; then the error is raised."""
    amounts = [1.0, 2.0, 666.0, 3.0]
    answers = client.decide_many(
        columns(amounts), batch_rows=1, in_flight=1, deadline_s=0.2
    )
    assert next(answers).decision.tolist() == ["approve"]
    assert next(answers).decision.tolist() == ["approve"]
    with pytest.raises(DeadlineExceeded):
        next(answers)
    assert list(answers) == []


def test_threads_may_share_a_client(client):
    """Four threads get the answers to their own rows."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(number):
        return client.decide(columns([float(number)])).score[0]

    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(ask, range(100)))
    assert scores == [np.float32(number / 1000) for number in range(100)]


def test_a_33_row_request_is_refused_by_the_server_too(echo_server, client):
    """The client's limit is the server's."""
    rows = check_columns(columns([1.0] * 33), inputs=FRAUD_INPUTS)
    (request,) = requests_of(
        rows, product="fraud", size=33, dry_run=False, deadline_s=PATIENT_S
    )
    with pytest.raises(Exception, match="batch-size must be <= 32"):
        client._infer(request, timeout=PATIENT_S)

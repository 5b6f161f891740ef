"""All stages of the journey, small, on a real Triton and real Redis servers."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import redis

from loadtests.baseline.json_bodies import json_bodies
from loadtests.journey.equal import check, report_stolen, with_store_deadline
from loadtests.journey.same_rate import at_rate
from loadtests.journey.stages import DOOR, FORMS, STAGES, Stage, run_stages
from loadtests.journey.turns import Plan, run_turn
from loadtests.requests.generator import make_generator, pick
from tollgate.errors import ServerError
from tollgate.history import History
from tollgate.load.store_contents import HISTORY_DAYS, served_spec, simulated_history
from tollgate.load.traffic import Traffic, traffic_of

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
ROWS = 64
REFUSED = "closed without a gRPC status, HTTP/2 error 7"
needs_h2load = pytest.mark.skipif(
    not (shutil.which("h2load") and shutil.which("cc")),
    reason="h2load or a C compiler is missing: apt-get install nghttp2-client gcc",
)


@pytest.fixture(scope="module")
def history_traffic() -> Traffic:
    """Purchases that follow a small history."""
    return traffic_of(small_history(), days=HISTORY_DAYS)


def small_history() -> History:
    """Simulate some weeks of a few customers."""
    spec = served_spec(REPOSITORY)
    return simulated_history(spec, customers=60, terminals=120, days=HISTORY_DAYS)


@pytest.fixture(scope="module")
def stages(
    tmp_path_factory: pytest.TempPathFactory, history_traffic: Traffic
) -> Iterator[Mapping[str, Stage]]:
    """All stages over equal stores; one card was reported stolen."""
    folder = tmp_path_factory.mktemp("journey")
    with run_stages(
        (*STAGES, DOOR),
        small_history(),
        repository=with_store_deadline(REPOSITORY, folder / "patient", ms=2_000),
        folder=folder,
        say=lambda text: None,
    ) as started:
        report_stolen(started, history_traffic, first=0)
        yield started


def test_every_stage_answers_the_same(
    stages: Mapping[str, Stage], history_traffic: Traffic
) -> None:
    """Decision, reason codes, and score up to the noise of float32."""
    forms = [stages[name] for name in FORMS]
    before = [form.batches() for form in forms]
    found = check(stages, history_traffic, first=0, rows=ROWS)
    assert found.rows == 2 * ROWS
    assert sum(found.decisions.values()) == ROWS
    assert {"approve", "decline"} <= set(found.decisions)
    assert 0 <= found.apart < 1e-6
    for form, (rows, batches) in zip(forms, before, strict=True):
        assert form.batches() == (rows + 2 * ROWS, batches + ROWS + ROWS // 16)


def test_a_stage_that_answers_otherwise_is_named(
    stages: Mapping[str, Stage], history_traffic: Traffic
) -> None:
    """With the purchase and both answers; here its history was lost."""
    pair = {name: stages[name] for name in ("naive", "fused")}
    with redis.Redis.from_url(stages["naive"].store_url) as store:
        store.flushall()
    with pytest.raises(ServerError, match=r"naive: decided \d+ of 16 .* instead of"):
        check(pair, history_traffic, first=10 * ROWS, rows=16)


@pytest.mark.parametrize("name", [DOOR, *(one for one in STAGES if one not in FORMS)])
def test_a_bad_purchase_is_refused(
    stages: Mapping[str, Stage], history_traffic: Traffic, name: str
) -> None:
    """Status 422, and the service goes on."""
    (body,) = json_bodies(history_traffic.columns(20 * ROWS, 1), rows=1)
    purchase = json.loads(body.tobytes())
    assert post(stages[name], purchase | {"amount": -1.0})[0] == 422
    assert post(stages[name], purchase | {"customer_id": ""})[0] == 422
    assert post(stages[name], {"transaction_id": "1"})[0] == 422
    assert post(stages[name], purchase)[0] == 200


@pytest.mark.parametrize("name", ["lean", "gathered"])
def test_a_purchase_sent_again_gets_its_first_answer(
    stages: Mapping[str, Stage], history_traffic: Traffic, name: str
) -> None:
    """As Tollgate does it; other content under the same id is refused."""
    (body,) = json_bodies(history_traffic.columns(21 * ROWS, 1), rows=1)
    purchase = json.loads(body.tobytes())
    first = post(stages[name], purchase)
    with redis.Redis.from_url(stages[name].store_url) as store:
        key = f"tollgate:fraud:decided:{purchase['transaction_id']}"
        wait_for(store, key)
    assert post(stages[name], purchase) == first
    status, text = post(stages[name], purchase | {"amount": 1.0})
    assert status == 422
    assert b"decided with other content" in text
    assert post(stages[name], [purchase] * 33, path="/decide/batch")[0] == 422


@needs_h2load
@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("naive", "1-row-16"),
        ("standalone", "16-rows-8"),
        ("fused", "1-row-64"),
        (DOOR, "16-rows-8"),
    ],
)
def test_a_turn_sends_purchases_that_were_never_sent(
    stages: Mapping[str, Stage],
    history_traffic: Traffic,
    tmp_path: Path,
    name: str,
    scenario: str,
) -> None:
    """Each that the server starts is answered; the cost of a request is reported."""
    plan = Plan(
        generator=make_generator(tmp_path),
        traffic=history_traffic,
        folder=tmp_path,
        warm_up_s=0.1,
        measured_s=0.5,
    )
    (shape,) = pick(scenario)
    turn, first = run_turn(plan, stages[name], shape, first=30 * ROWS)
    # Triton may refuse a request before it starts; gRPC's clients then send it again.
    assert turn.failed == turn.failures.get(REFUSED, 0)
    assert turn.decisions_per_s == shape.rows * turn.requests_per_s > 0
    assert first > 30 * ROWS
    assert (first - 30 * ROWS) % shape.rows == 0
    assert min(turn.cpu_ms, turn.service_mb, turn.store_mb) > 0
    assert (turn.batch_rows > 0) == (name in (*FORMS, DOOR))


@pytest.mark.parametrize("name", ["gathered", "fused"])
def test_arrivals_do_not_wait_for_answers(
    stages: Mapping[str, Stage], history_traffic: Traffic, name: str
) -> None:
    """Both protocols are sent the same number, and all are answered."""
    result, first = at_rate(
        stages[name],
        history_traffic,
        first=40 * ROWS,
        rate_per_s=40.0,
        seconds=0.5,
        warm_up_s=0.2,
        seed=1,
    )
    assert first == 40 * ROWS + 28
    assert result.unanswered == 0
    assert 0 < result.latency.p50_ms <= result.latency.max_ms


def wait_for(store: redis.Redis, key: str) -> None:
    """Wait until the journal has stored an answer."""
    for _ in range(500):
        if store.exists(key):
            return
        time.sleep(0.01)
    raise AssertionError(f"{key} was not stored")


def post(stage: Stage, content: object, *, path: str = "/decide") -> tuple[int, bytes]:
    """Post JSON; status and content of the answer."""
    connection = http.client.HTTPConnection(stage.url, timeout=10)
    head = {"content-type": "application/json"}
    connection.request("POST", path, body=json.dumps(content), headers=head)
    answer = connection.getresponse()
    content_ = answer.read()
    connection.close()
    return answer.status, content_

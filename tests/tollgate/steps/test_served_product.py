"""The fraud product on a real Triton and a real Redis, as its callers meet it."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import polars as pl
import pytest
import redis
from tritonclient.grpc import service_pb2, service_pb2_grpc

from converters.parity.runner import onnx_runner
from tests.support.steps.step_parameters import told_otherwise
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import history_of
from tollgate.pipeline import decide_history
from tollgate.schema import Degraded
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control
from tollgate_client import Client, ClientError, Decisions, InvalidRequest, join
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = time.time_ns() // 1000
DEFAULTED = Degraded.STORE_UNAVAILABLE | Degraded.LOOKUPS_UNREAD
PATIENT_MS = "2000"  # a busy machine must not turn into degraded answers


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed repository with a patient store deadline."""

    copy = tmp_path_factory.mktemp("served") / "model_repository"
    shutil.copytree(REPOSITORY, copy)
    config = copy / "fraud_features/config.pbtxt"
    text = config.read_text()
    assert 'string_value: "5"' in text
    config.write_text(
        text.replace('string_value: "5"', f'string_value: "{PATIENT_MS}"')
    )
    return copy


@pytest.fixture(scope="module")
def served(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Embedded]:
    """One server for the tests of this module."""
    with serve(repository, state=tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture
def client(served: Embedded) -> Iterator[Client]:
    """A client; the store is empty."""
    with redis.Redis.from_url(served.store_url) as store:
        store.flushall()
    with Client(served.grpc_url, timeout_s=20) as opened:
        yield opened


def rows(count: int, **changes: object) -> dict[str, object]:
    """Columns of good purchases; a change replaces a column."""
    return {
        "transaction_id": [f"t{row}" for row in range(count)],
        "customer_id": [f"c{row % 3}" for row in range(count)],
        "terminal_id": [f"m{row % 5}" for row in range(count)],
        "amount": [10.0 + row for row in range(count)],
        "event_time": [NOW_US + row for row in range(count)],
    } | changes


def same(one: Decisions, other: Decisions) -> bool:
    """Compare the answers bit for bit, times aside."""
    return (
        one.decision.tolist() == other.decision.tolist()
        and one.score.tobytes() == other.score.tobytes()
        and one.reason_codes == other.reason_codes
        and one.degraded.tolist() == other.degraded.tolist()
        and one.error.tolist() == other.error.tolist()
    )


BAD = {
    "empty id": ("transaction_id", b"", "is empty"),
    "long id": ("customer_id", b"x" * 129, "has 129 bytes, 128 are allowed"),
    "not UTF-8": ("terminal_id", b"\xc3\x28", "is not UTF-8"),
    "negative": ("amount", -0.01, "is negative"),
    "NaN": ("amount", math.nan, "is not a finite number"),
    "infinite": ("amount", math.inf, "is not a finite number"),
    "sub-cent": ("amount", 9.999, "is not in whole cents"),
    "absurd": ("amount", 1e12, "is over 10000000.00"),
    "ancient": ("event_time", 1, "is before the year 2000"),
    "future": ("event_time", NOW_US + 10**12, "is over a day ahead"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_fails_alone(client: Client, name: str) -> None:
    """The bad row is named by field; its neighbours' answers are those without it."""
    field, value, rule = BAD[name]
    columns = rows(5)
    column = list(columns[field])  # type: ignore[call-overload]
    column[2] = value
    mixed = client.decide(columns | {field: column}, dry_run=True)
    assert mixed.error[2].startswith(f"{field}: ")
    assert mixed.error[2].endswith(rule)
    assert mixed.decision[2] == ""
    assert math.isnan(mixed.score[2])
    good = [0, 1, 3, 4]
    without = client.decide(
        {name: [values[row] for row in good] for name, values in columns.items()},  # type: ignore[index]
        dry_run=True,
    )
    assert mixed.score[good].tobytes() == without.score.tobytes()
    assert mixed.decision[good].tolist() == without.decision.tolist()
    assert mixed.error[good].tolist() == [""] * 4


def test_a_request_of_bad_rows_fails_with_all_their_words(client: Client) -> None:
    """INVALID_ARG that lists each row."""
    with pytest.raises(InvalidRequest) as caught:
        client.decide(rows(2, amount=[-1.0, math.nan]))
    text = str(caught.value)
    assert "row 0: amount: -1.0: is negative" in text
    assert "row 1: amount: nan: is not a finite number" in text


def test_a_dry_run_keeps_nothing_and_answers_as_if(
    served: Embedded, client: Client
) -> None:
    """No key; and the real run then gives the very same answer."""
    dry = client.decide(rows(7), dry_run=True)
    with redis.Redis.from_url(served.store_url) as store:
        assert store.dbsize() == 0
    wet = client.decide(rows(7))
    assert same(dry, wet)
    with redis.Redis.from_url(served.store_url) as store:
        assert len(store.keys("*:customer:*") + store.keys("*:terminal:*")) == 3 + 5
    assert same(wet, client.decide(rows(7)))
    assert same(wet, client.decide(rows(7), dry_run=True))


def test_permuted_rows_permute_the_answers(client: Client) -> None:
    """Reading is as of each row, whatever the order in the request."""
    columns = rows(20)
    straight = client.decide(columns, dry_run=True)
    order = np.random.default_rng(1).permutation(20)
    shuffled = client.decide(
        {name: [values[row] for row in order] for name, values in columns.items()},  # type: ignore[index]
        dry_run=True,
    )
    assert shuffled.score.tobytes() == straight.score[order].tobytes()
    assert shuffled.decision.tolist() == straight.decision[order].tolist()


def test_alone_equals_batched(client: Client) -> None:
    """One by one in the order of time, or all at once: the same scores."""
    columns = rows(12)
    alone = join(
        [
            client.decide({name: [values[row]] for name, values in columns.items()})  # type: ignore[index]
            for row in range(12)
        ]
    )
    again = client.decide(columns)
    assert alone.score.tobytes() == again.score.tobytes()


def test_served_scores_are_the_model_on_offline_features(
    served: Embedded,
    client: Client,
    spec: FeatureSpec,
    simulated: pl.DataFrame,
    repository: Path,
) -> None:
    """The served score is onnxruntime's on offline features, to the bit."""
    history = history_of(simulated, spec=spec, source="simulated")
    middle = int(np.quantile(history.event_time_us, 0.6))
    score = np.full(len(history), np.nan, np.float32)
    degraded = np.zeros(len(history), np.uint32)
    for positions, answer in decide_history(
        history,
        spec=spec,
        grpc_url=served.grpc_url,
        store_url=served.store_url,
        decide_from_us=middle,
        batch_rows=32,
        in_flight=1,
    ):
        score[positions] = answer.score
        degraded[positions] = answer.degraded
    later = history.event_time_us >= middle
    assert later.sum() > 200
    assert not (degraded[later] & ~np.uint32(Degraded.COLD_START)).any()
    features = build(spec, history).astype(np.float32)[later]
    model = (repository / "fraud_model/1/model.onnx").read_bytes()
    expected = onnx_runner(model)(features)
    assert score[later].tobytes() == expected[:, 1].tobytes()


@pytest.mark.parametrize(
    ("name", "kind", "value", "words"),
    [
        ("deadline_us", "int64_param", 0, "deadline_us: no time left"),
        ("deadline_us", "string_param", "soon", "is not whole microseconds"),
        ("deadline_us", "bool_param", True, "is not whole microseconds"),
        ("dry_run", "string_param", "false", "dry_run: 'false': is neither true nor"),
        ("dry_run", "int64_param", 1, "dry_run: 1: is neither true nor false"),
    ],
)
def test_a_wrong_parameter_costs_its_own_request_only(
    served: Embedded, client: Client, name: str, kind: str, value: object, words: str
) -> None:
    """Refused by name, nothing written, and the requests around it are answered."""
    (encoded,) = requests_of(
        check_columns(rows(1), inputs=FRAUD_INPUTS),
        product="fraud",
        size=32,
        dry_run=False,
        deadline_s=1.0,
    )
    request = service_pb2.ModelInferRequest.FromString(encoded)
    good = service_pb2.ModelInferRequest.FromString(encoded)
    good.parameters["dry_run"].bool_param = True
    request.parameters[name].Clear()
    setattr(request.parameters[name], kind, value)
    with grpc.insecure_channel(served.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        wrong = []
        around = []
        for _ in range(20):  # together, so that some share a batch
            around.append(stub.ModelInfer.future(good, timeout=20))
            wrong.append(stub.ModelInfer.future(request, timeout=20))
        assert all(call.exception() is None for call in around)
        for call in wrong:
            assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert words in call.details()
    with redis.Redis.from_url(served.store_url) as store:
        assert store.dbsize() == 0


def test_what_waited_too_long_since_the_gateway_costs_no_work(
    served: Embedded,
) -> None:
    """Triton hands the gateway's clock on; neither store nor model sees the row."""
    (encoded,) = requests_of(
        check_columns(rows(1), inputs=FRAUD_INPUTS),
        product="fraud",
        size=32,
        dry_run=False,
        deadline_s=2.0,
    )
    request = service_pb2.ModelInferRequest.FromString(encoded)

    def modelled() -> int:
        models = control.statistics(served.triton)
        return int(models["fraud_model"].get("inference_count", 0))

    before = modelled()
    came = (("tollgate-arrived", f"{time.time() - 2.5:.3f}"),)
    with (
        grpc.insecure_channel(served.grpc_url) as channel,
        redis.Redis.from_url(served.store_url) as store,
    ):
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        late = infer.future(request, timeout=20, metadata=came)
        assert late.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "deadline_us: no time left" in late.details()
        assert (store.dbsize(), modelled()) == (0, before)
        request.parameters["dry_run"].bool_param = True
        came = (("tollgate-arrived", f"{time.time():.3f}"),)
        assert infer(request, timeout=20, metadata=came)
    assert modelled() == before + 1


def test_a_dead_store_costs_quality_and_no_answer(
    repository: Path, tmp_path: Path
) -> None:
    """
    Redis is killed: every row is answered, says so, and follows the policy.

    Entities that were seen before give their last known values, others defaults; and
    the server's own metrics report the same.
    """
    amounts = {"amount": [20.0, 250.0, 9.0]}
    new = {"customer_id": ["n1", "n2", "n3"], "terminal_id": ["n4", "n5", "n6"]}
    with serve(repository, state=tmp_path) as server:
        assert server.redis is not None
        with Client(server.grpc_url, timeout_s=20) as client:
            assert client.decide(rows(3)).error.tolist() == [""] * 3
            os.kill(server.redis.pid, signal.SIGKILL)
            known = client.decide(rows(3, **amounts))
            answer = client.decide(rows(3, **amounts, **new))
            for _ in range(4):  # until the breaker opens
                client.decide(rows(3))
            until_s = time.monotonic() + 600
            while value_of(text := metrics_of(server), BREAKER) != 2:
                assert time.monotonic() < until_s, "exported each second"
                time.sleep(0.1)
    assert known.error.tolist() + answer.error.tolist() == [""] * 6
    assert [bit & Degraded.LAST_KNOWN_VECTOR for bit in known.degraded] == [2] * 3
    assert not (known.degraded & Degraded.STORE_UNAVAILABLE).any()
    assert answer.degraded.tolist() == [int(DEFAULTED)] * 3
    assert not np.isnan(answer.score).any()
    assert answer.decision[1] != "approve"
    assert "FEATURES_UNAVAILABLE" in answer.reason_codes[1]
    assert value_of(text, "tollgate_store_breaker_opened_total") == 1
    assert value_of(text, "tollgate_degraded_rows_total", "STORE_UNAVAILABLE") == 3
    assert value_of(text, "tollgate_last_known_values_total", 'found="no"') == 6


BREAKER = "tollgate_store_breaker_state"


def metrics_of(server: Embedded) -> str:
    """Read what Prometheus would."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        return str(answer.read().decode())


def value_of(text: str, family: str, label: str = "") -> float:
    """Read one metric of the metrics page."""
    (line,) = [
        line
        for line in text.splitlines()
        if line.startswith(f"{family}{{") and label in line
    ]
    return float(line.rpartition(" ")[2])


def test_the_metrics_of_the_papers_are_on_the_page(
    served: Embedded, client: Client
) -> None:
    """Each family of docs/reliability.md is there."""
    client.decide(rows(3))
    time.sleep(1.5)  # they are exported once a second
    client.decide(rows(3))
    text = metrics_of(served)
    reported = set(re.findall(r"^# HELP (tollgate_\w+) ", text, re.MULTILINE))
    reported |= {
        name.removesuffix("_count") for name in reported
    }  # histograms, by their parts
    paper = (REPOSITORY.parent / "docs/reliability.md").read_text()
    assert reported >= set(re.findall(r"^\| `(tollgate_\w+)` \|", paper, re.MULTILINE))
    for name in ("calls_total", "call_seconds_count", "breaker_state"):
        assert f"tollgate_store_{name}{{" in text
    assert value_of(text, "tollgate_feed_watermark_seconds", "purchases") == (
        pytest.approx(NOW_US / 1e6, abs=1)
    )


def test_a_foreign_feature_spec_never_meets_the_model(
    served: Embedded, client: Client
) -> None:
    """The decision step refuses features of a spec its release does not name."""
    other = "00000000000000ff"
    with (
        told_otherwise(served, "fraud_decision", expected_spec_hash=other),
        pytest.raises(ClientError, match=f"but the release is of {other}"),
    ):
        client.decide(rows(1), dry_run=True)
    assert client.decide(rows(1), dry_run=True).error.tolist() == [""]

"""A product served as one model answers and journals as its ensemble does."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import redis
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.support.policy.early_rules import CODE, UNSCORABLE, release_early_rule
from tests.support.server.next_release import next_release
from tollgate import Engine
from tollgate.errors import ServerError, TollgateError
from tollgate.features.spec.feature_spec import wire_inputs
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import stream_key
from tollgate.latency_budget.measurement import Load, measure
from tollgate.load.synthetic import synthetic_purchases
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    write_release,
)
from tollgate.repository.releases.rendering import lookup_lists
from tollgate.repository.releases.served_versions import load_policy_of, served_spec
from tollgate.repository.releases.serving_plan import plan_serving
from tollgate.repository.slo import Form
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import public_name
from tollgate.server.address import find_server
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.publishing import publish
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.serving.loaded import record_path
from tollgate.server.triton import control
from tollgate.server.triton.probe import probe
from tollgate.supervisor.stubs import find_stubs
from tollgate.tuning.override import Override
from tollgate.tuning.settings import Roles

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
PRODUCTS = ("fraud", "credit")
FORMS: tuple[Form, ...] = ("ensemble", "fused")
ROWS = 3_000
NOW_US = time.time_ns() // 1000
PATIENCE_S = 600.0
TIMES = {"writer", "decided_us", "features_us", "model_us", "decision_us"}

Columns = Mapping[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The committed products, with a rule that decides before the model.

    A busy machine's store may be late.
    """
    copy = tmp_path_factory.mktemp("fused") / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for product in PRODUCTS:
        config = copy / f"{product}_features/config.pbtxt"
        text = config.read_text()
        config.write_text(text.replace('string_value: "5"', 'string_value: "5000"'))
    release_early_rule(copy)
    return copy


@pytest.fixture(scope="module")
def servers(repository: Path) -> Iterator[dict[Form, Embedded]]:
    """The same products in both forms, each server with its own store."""
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(
                serve(
                    repository,
                    products=PRODUCTS,
                    state=repository.parent / form,
                    form=form,
                )
            )
            for form in FORMS
        }


def ask(
    server: Embedded,
    product: str,
    columns: Columns,
    *,
    outputs: tuple[str, ...] = (),
    **parameters: Any,
) -> Any:
    """Send one request: each output's bytes and shape, or the text of the error."""
    tensors = []
    for name, column in columns.items():
        tensor = InferInput(name, [len(column), 1], np_to_triton_dtype(column.dtype))
        tensor.set_data_from_numpy(column[:, None])
        tensors.append(tensor)
    wanted = [InferRequestedOutput(name) for name in outputs] or None
    with InferenceServerClient(server.grpc_url) as client:
        try:
            answer = client.infer(
                product,
                tensors,
                outputs=wanted,
                parameters=parameters,
                client_timeout=60,
                request_id="7",
            )
        except InferenceServerException as error:
            return error.status(), error.message()
        response = answer.get_response()
        named = (response.model_name, response.model_version, response.id)
        found = {
            one.name: (one.datatype, tuple(one.shape), answer.as_numpy(one.name))
            for one in response.outputs
        }
    return named, {
        name: (kind, shape, array.tolist() if kind == "BYTES" else array.tobytes())
        for name, (kind, shape, array) in found.items()
    }


def columns_of(repository: Path, product: str, count: int, *, seed: int) -> Columns:
    """Generate purchases as tensors."""
    spec = served_spec(repository, product=product)
    made = synthetic_purchases(spec, count, seed=seed, first_us=NOW_US, ids=40)
    return {
        name: np.array([one.encode() for one in column], np.object_)
        if isinstance(column, list)
        else np.asarray(column)
        for name, column in made.items()
    }


def sizes() -> list[int]:
    """Return request sizes that add up to ROWS."""
    drawn = np.random.default_rng(3).integers(1, 33, ROWS).tolist()
    found: list[int] = []
    while sum(found) < ROWS:
        found.append(min(drawn.pop(), ROWS - sum(found)))
    return found


def records_of(server: Embedded, product: str) -> dict[bytes, tuple[Any, ...]]:
    """Read the journal's records by transaction id, without what is a time."""
    found: dict[bytes, tuple[Any, ...]] = {}
    with redis.Redis.from_url(server.store_url) as store:
        chunks = [
            decode_chunk(entry[b"c"])
            for _, entry in store.xrange(stream_key(product))
            if b"c" in entry
        ]
    for chunk in chunks:
        common = chunk.release, chunk.spec_hash, chunk.entities, chunk.product
        for row, name in enumerate(chunk.transaction_id):
            values: list[Any] = [*common, *(ids[row] for ids in chunk.entity_id)]
            values += [(key, int(column[row])) for key, column in chunk.fields.items()]
            for key in chunk.__struct_fields__:
                column = getattr(chunk, key)
                if isinstance(column, np.ndarray) and key not in TIMES:
                    values.append((key, column[row].tobytes()))
            values.append(chunk.reason_codes[row])
            assert name not in found
            found[name] = tuple(values)
    return found


def models_of(server: Embedded) -> list[str]:
    """List the models that have a process."""
    return sorted(stub.step.model for stub in find_stubs(server.triton.pid))


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_one_process_serves_a_fused_product(servers: dict[Form, Embedded]) -> None:
    """The ensemble's three steps are one model with the ensemble's name."""
    models = {form: models_of(server) for form, server in servers.items()}
    assert models["fused"] == ["credit", "fraud"]
    assert len(models["ensemble"]) == 6


def test_no_caller_reaches_a_part(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """A fused server knows no step, and no model under which a release is tried."""
    columns = columns_of(repository, "fraud", 2, seed=4)
    for name in ("fraud_features", "fraud_model", "fraud_decision", "fraud--next"):
        status, text = ask(servers["fused"], name, columns)
        assert "NOT_FOUND" in status
        assert "unknown model" in text


@pytest.mark.parametrize("product", PRODUCTS)
def test_answers_and_journal_have_the_same_bits(
    servers: dict[Form, Embedded], repository: Path, product: str
) -> None:
    """Thousands of rows in requests of 1 to 32; some bad, repeated, dry or listed."""
    columns = columns_of(repository, product, ROWS, seed=5)
    columns["transaction_id"][700:760] = columns["transaction_id"][100:160]  # conflicts
    columns["amount"][np.arange(5, ROWS, 97)] = -1.0
    columns["transaction_id"][np.arange(50, ROWS, 301)] = b""
    deny([one.store_url for one in servers.values()], repository, product, columns)
    starts = np.cumsum([0, *sizes()]).tolist()
    decided: set[bytes] = set()
    for number, (start, stop) in enumerate(itertools.pairwise(starts)):
        part = {name: column[start:stop] for name, column in columns.items()}
        parameters = {"dry_run": True} if number % 10 == 9 else {}
        turns = 2 if number % 7 == 6 else 1  # the second is answered from the first
        for _ in range(turns):
            answers = {
                form: ask(server, product, part, **parameters)
                for form, server in servers.items()
            }
            assert answers["fused"] == answers["ensemble"], (start, stop)
            _, answer = answers["fused"]
            if not parameters and not isinstance(answer, str):
                names = part["transaction_id"].tolist()
                words = [one for (one,) in answer["decision"][2]]
                decided |= {name for name, one in zip(names, words, strict=True) if one}
            if turns == 2:
                wait_journaled(servers, product, decided)
    wait_journaled(servers, product, decided)
    records = {form: records_of(server, product) for form, server in servers.items()}
    assert len(records["fused"]) > ROWS * 0.8
    assert records["fused"] == records["ensemble"]


def deny(urls: list[str], repository: Path, product: str, columns: Columns) -> None:
    """Put some ids on the policy's first list, in each store."""
    spec = served_spec(repository, product=product)
    policy = load_policy_of(repository / f"{product}_decision" / "1", spec)
    for one in lookup_lists(policy, product)[:1]:
        for url in urls:
            with redis.Redis.from_url(url) as store:
                store.sadd(one.key, *columns[one.of][:30].tolist())


def wait_journaled(
    servers: dict[Form, Embedded], product: str, names: set[bytes]
) -> None:
    """Wait until both journals have a record of each of these transactions."""
    for server in servers.values():
        wait_for(lambda one=server: names <= records_of(one, product).keys())


def test_rows_decided_before_the_model_have_no_score(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """Alone and among others; the journal has no probabilities of them either."""
    columns = dict(columns_of(repository, "fraud", 24, seed=31))
    columns["transaction_id"] = np.array(
        [f"early-{row}".encode() for row in range(24)], np.object_
    )
    columns["customer_id"] = np.array(
        [b"early" if row % 3 else b"usual" for row in range(24)], np.object_
    )
    urls = [one.store_url for one in servers.values()]
    deny(urls, repository, "fraud", {"customer_id": np.array([b"early"])})
    early = np.arange(24) % 3 > 0
    for rows in (slice(0, 1), slice(1, 2), slice(2, 24)):
        part = {name: column[rows] for name, column in columns.items()}
        answers = {form: ask(one, "fraud", part) for form, one in servers.items()}
        assert answers["fused"] == answers["ensemble"]
        _, answer = answers["fused"]
        score = np.frombuffer(answer["score"][2], np.float32)
        assert np.isnan(score).tolist() == early[rows].tolist()
        codes = [one == [CODE.encode()] for one in answer["reason_codes"][2]]
        declined = [one == [b"decline"] for one in answer["decision"][2]]
        assert codes == declined == early[rows].tolist()
        assert not any(np.frombuffer(answer["degraded"][2], np.uint32) & (1 << 6))
    wait_journaled(servers, "fraud", {*columns["transaction_id"].tolist()})
    records = {form: records_of(one, "fraud") for form, one in servers.items()}
    for row, name in enumerate(columns["transaction_id"].tolist()):
        assert records["fused"][name] == records["ensemble"][name]
        stored = dict(one for one in records["fused"][name] if isinstance(one, tuple))
        chances = np.frombuffer(stored["probabilities"], np.float32)
        assert np.isnan(chances).all() == np.isnan(chances).any() == early[row]


def test_a_batch_decided_before_the_model_skips_it(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """The model fails on these amounts, so a request without an error skipped it."""
    urls = [one.store_url for one in servers.values()]
    deny(urls, repository, "fraud", {"customer_id": np.array([b"early"])})
    columns = dict(columns_of(repository, "fraud", 3, seed=32))
    columns["amount"] = np.full(3, UNSCORABLE + 1.0)
    columns["customer_id"] = np.array([b"early", b"early", b"usual"], np.object_)
    both = {name: column[:2] for name, column in columns.items()}
    _, answer = ask(servers["fused"], "fraud", both, dry_run=True)
    assert answer["decision"][2] == [[b"decline"], [b"decline"]]
    for form, request in (("ensemble", both), ("fused", columns)):
        _, text = ask(servers[form], "fraud", request, dry_run=True)
        assert "onnxruntime" in text


def test_errors_are_the_same(servers: dict[Form, Embedded], repository: Path) -> None:
    """Of a request that is bad as a whole, that Triton refuses, and that is too big."""
    good = columns_of(repository, "fraud", 40, seed=8)
    one = {name: column[:2] for name, column in good.items()}
    requests: list[tuple[Columns, dict[str, Any]]] = [
        ({**one, "amount": np.array([-1.0, np.nan])}, {}),
        ({**one, "transaction_id": np.array([b"", b"x" * 200], np.object_)}, {}),
        (one, {"dry_run": "yes"}),
        (one, {"deadline_us": 1, "store_deadline_ms": 0}),
        ({name: one[name] for name in one if name != "amount"}, {}),
        ({**one, "amount": np.array([1, 2], np.int64)}, {}),
        ({**one, "more": np.array([1.0, 2.0])}, {}),
        (good, {}),
    ]
    for columns, parameters in requests:
        said = {
            form: ask(server, "fraud", columns, **parameters)
            for form, server in servers.items()
        }
        assert said["fused"] == said["ensemble"]
        assert isinstance(said["fused"][1], str)


def test_a_caller_gets_the_outputs_it_wants(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """Only these, in the same form."""
    columns = columns_of(repository, "fraud", 3, seed=9)
    said = {
        form: ask(server, "fraud", columns, outputs=("decision", "score"), dry_run=True)
        for form, server in servers.items()
    }
    assert said["fused"] == said["ensemble"]
    assert sorted(said["fused"][1]) == ["decision", "score"]


def test_the_interface_is_the_same(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """Name, versions, inputs and outputs; the platform says which form it is."""
    found = {}
    for form, server in servers.items():
        with InferenceServerClient(server.grpc_url) as client:
            metadata = client.get_model_metadata("credit", as_json=True)
            found[form] = {**metadata, "platform": ""}
    assert found["fused"] == found["ensemble"]
    names = {one["name"] for one in found["fused"]["inputs"]}
    assert names >= wire_inputs(served_spec(repository, product="credit")).keys()


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_engine_in_this_process_has_the_same_bits(
    servers: dict[Form, Embedded], repository: Path, tmp_path: Path, product: str
) -> None:
    """Over a store of its own, with the same rows in the same batches."""
    columns = dict(columns_of(repository, product, 640, seed=21))
    columns["amount"][np.arange(3, 640, 50)] = -1.0
    for entity in served_spec(repository, product=product).entities:
        columns[entity.key] = np.array(
            [b"own-" + one for one in columns[entity.key]], np.object_
        )
    with (
        EmbeddedRedis(tmp_path) as store,
        Engine.open(repository, product=product, store=store.url) as engine,
    ):
        deny([store.url, servers["fused"].store_url], repository, product, columns)
        found = engine.decide(columns)
    for start in range(0, 640, 32):
        rows = slice(start, start + 32)
        part = {name: column[rows] for name, column in columns.items()}
        _, answer = ask(servers["fused"], product, part)
        assert answer.keys() == found.keys()
        for name, (kind, _, value) in answer.items():
            own = found[name][rows]
            if kind == "BYTES":
                assert value == [[text.encode()] for text in own.tolist()], name
            else:
                assert value == own.tobytes(), name


class Caller:
    """Asks for dry runs all the while; notes releases and problems."""

    def __init__(self, server: Embedded) -> None:
        self._server = server
        self.releases: list[str] = []
        self.problems: list[Exception] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ended.is_set():
            try:
                proof = probe(self._server.triton, "fraud", rows=(1,))
                self.releases.append(proof.release)
            except TollgateError as error:
                self.problems.append(error)


def switch(server: Embedded, repository: Path, release: Release) -> None:
    """Switch a fused server to a release."""
    plan = plan_serving(RepositorySnapshot(repository), release, form="fused")
    server.serving["fraud"].switch(plan, progress=lambda _: None)


def test_releases_are_activated_and_rolled_back_under_load(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """No request fails; a release that does not load leaves the old one alone."""
    server = servers["fused"]
    first = read_release(repository, product="fraud")
    for step in ("fraud_model", "fraud_decision"):
        shutil.copytree(repository / step / "1", repository / step / "7")
    bad = repository / "fraud_decision/8"
    shutil.copytree(repository / "fraud_decision/1", bad)
    (bad / "model.py").write_text(
        (bad / "model.py").read_text() + "\n    def execute(self, requests): ...\n"
    )
    with Caller(server) as caller:
        second = next_release(repository, fraud_model=7, fraud_decision=7)
        switch(server, repository, second)
        assert probe(server.triton, "fraud").release == second.name
        switch(server, repository, first)
        assert probe(server.triton, "fraud").release == first.name
        with pytest.raises(ServerError, match=r"not only a DecisionStep.*execute"):
            switch(server, repository, next_release(repository, fraud_decision=8))
        assert probe(server.triton, "fraud").release == first.name
    assert caller.problems == []
    assert set(caller.releases) == {first.name, second.name}
    write_release(repository, first)
    wait_for(lambda: models_of(server) == ["credit", "fraud"])


def test_a_version_is_published_to_a_fused_server(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """It is loaded as a model of its own, asked, and unloaded again."""
    server = servers["fused"]
    published = publish(
        repository / "fraud_model/1",
        repository=repository,
        product="fraud",
        server=server.triton,
        dry_load=False,
    )
    assert published.release == server.serving["fraud"].release
    assert control.ready_versions(server.triton, "fraud_model") == []
    assert "model.onnx in onnxruntime" in server.triton.log.read_text()


def test_the_budget_of_a_fused_product_has_all_layers(
    servers: dict[Form, Embedded], repository: Path
) -> None:
    """Its steps report their batches; the queue is the model's only one."""
    server = servers["fused"]
    address = find_server(repository.parent / "fused")
    assert address is not None
    found = measure(
        address,
        Load(rate_per_s=50.0, seconds=4.0, warm_up_s=1.0),
        state=repository.parent / "fused",
        models=read_product(repository, "fraud"),
        spec=served_spec(repository, product="fraud"),
    )
    answered = int(found.sent.answered.sum())
    for step in ("fraud_features", "fraud_model", "fraud_decision"):
        assert found.counts[step].requests == answered
        assert found.counts[step].work_ms > 0
    assert found.counts["fraud_decision"].queue_ms == 0
    assert all((times > 0).any() for times in found.split.layers_ms.values())
    assert server.serving["fraud"].form == "fused"


def test_metrics_keep_the_names_of_the_steps(servers: dict[Form, Embedded]) -> None:
    """A dashboard of an ensemble shows a fused product, too."""
    pattern = re.compile(r'^(tollgate_\w+)\{.*?model="(\w+)"', re.MULTILINE)
    found = {}
    for form, server in servers.items():
        with urllib.request.urlopen(server.metrics_url, timeout=10) as page:
            found[form] = set(pattern.findall(page.read().decode()))
    assert found["fused"] == found["ensemble"]
    assert {model for _, model in found["fused"]} >= {
        "fraud_features",
        "credit_decision",
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_tuning_tries_both_forms_and_restores_the_served_one(
    servers: dict[Form, Embedded], repository: Path, form: Form
) -> None:
    """Triton runs a candidate's delay and threads, and decides with them."""
    state = repository.parent / form
    address = find_server(state)
    assert address is not None
    tried = Override(
        address,
        record=record_path(state, "fraud"),
        roles=Roles(read_product(repository, "fraud")),
    )
    server, models = servers[form], models_of(servers[form])
    columns = columns_of(repository, "fraud", 8, seed=77)
    _, answer = ask(server, "fraud", columns, dry_run=True)
    with tried:
        base = tried.base
        assert (base.form, base.fused_queue_delay_us) == (form, 1000)
        fused = msgspec.structs.replace(
            base, form="fused", fused_queue_delay_us=300, threads=2
        )
        ensemble = msgspec.structs.replace(base, form="ensemble", delay_us=700)
        for candidate in (fused, ensemble, fused):
            tried.apply(candidate)
            assert tried.holds(candidate)
            name = tried.model(candidate)
            assert (name == "fraud") == (candidate.form == form)
            assert ask(server, name, columns, dry_run=True)[1] == answer
        config = control.model_config(address, public_name(name))
        batching, parts = config["dynamic_batching"], config["parameters"]["fused"]
        assert batching["max_queue_delay_microseconds"] == "300"
        model = json.loads(json.loads(parts["string_value"])["model"]["config"])
        threads = model["parameters"]["intra_op_thread_count"]
        assert threads["string_value"] == "2"
        assert not tried.holds(base)
    assert tried.holds(base)
    wait_for(lambda: models_of(server) == models)
    assert ask(server, "fraud", columns, dry_run=True)[1] == answer

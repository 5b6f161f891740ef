"""A product without windows and without money on a real Triton, as callers meet it."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import redis
from typer.testing import CliRunner

from converters.parity.runner import onnx_runner
from tests.support.products import loans_product
from tollgate.challenger.decision_counts import clusters
from tollgate.challenger.shadow_scoring import recorded_decisions
from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import history_of
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.repository.lint.product_rules import check
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import Degraded
from tollgate.server.serving.embedded import Embedded, serve
from tollgate_client import Client, InvalidRequest, join

pytestmark = pytest.mark.slow

NOW_US = time.time_ns() // 1000
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loans product, with a pipeline that imputes what is missing."""
    folder = tmp_path_factory.mktemp("loans") / "model_repository"
    loans_product.make_product(folder, loans_product.table(2_000))
    return folder


@pytest.fixture(scope="module")
def loans(repository: Path) -> FeatureSpec:
    """Its features."""
    return load_spec(repository / "loans_features/1/features.yaml")


@pytest.fixture(scope="module")
def served(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Embedded]:
    """That product, served."""
    assert [
        str(one)
        for one in check(RepositorySnapshot(repository), product=loans_product.NAME)
    ] == []
    state = tmp_path_factory.mktemp("state")
    with serve(repository, products=(loans_product.NAME,), state=state) as server:
        yield server


@pytest.fixture
def client(served: Embedded) -> Iterator[Client]:
    """A client; the store is empty, and stays so: what came before is journalled."""
    with Client(
        served.grpc_url,
        product=loans_product.NAME,
        inputs=loans_product.INPUTS,
        fields=loans_product.FIELDS,
        timeout_s=20,
    ) as opened:
        last = f"last-{time.monotonic_ns()}-"
        opened.decide(applications(last, 1))
        journalled(served, rows=1, last=f"{last}0".encode())
        with redis.Redis.from_url(served.store_url) as store:
            store.flushall()
        yield opened


def applications(name: str, count: int, **changes: object) -> dict[str, object]:
    """Columns of applications, some of which lack something."""
    drawn = loans_product.table(count, seed=7)
    return {
        "transaction_id": [f"{name}{row}" for row in range(count)],
        "event_time": [NOW_US + row for row in range(count)],
        **{field: drawn[field].to_list() for field in loans_product.FIELDS},
    } | changes


def picked(columns: dict[str, object], rows: list[int]) -> dict[str, object]:
    """Take some rows."""
    return {name: [values[row] for row in rows] for name, values in columns.items()}  # type: ignore[index]


def expected(
    repository: Path, spec: FeatureSpec, columns: dict[str, object]
) -> np.ndarray:
    """Score them outside of the server: offline features, and onnxruntime."""
    table = pl.DataFrame(columns)
    features = build(spec, history_of(table, spec=spec, source="asked"))
    model = (repository / "loans_model/1/model.onnx").read_bytes()
    return onnx_runner(model)(features.astype(np.float32))[:, 1]


def test_served_scores_are_the_model_on_offline_features(
    client: Client, repository: Path, loans: FeatureSpec
) -> None:
    """To the bit, NaN included, which the graph imputes; and nothing is degraded."""
    columns = applications("s", 320)
    answer = join(list(client.decide_many(columns)))
    assert answer.error.tolist() == [""] * 320
    assert answer.score.tobytes() == expected(repository, loans, columns).tobytes()
    drawn = loans_product.table(320, seed=7)
    known = drawn["housing"].is_in(loans_product.HOUSING)
    for name in ("income", "debt", "years"):
        known &= drawn[name].is_not_nan()
    bits = np.where(known.to_numpy(), 0, int(Degraded.FIELD_MISSING))
    assert answer.degraded.tolist() == bits.tolist()
    assert 50 < known.sum() < 270
    no_income = drawn["income"].is_nan().to_list()
    assert ["NO_INCOME" in codes for codes in answer.reason_codes] == no_income


def test_alone_equals_batched_and_order_does_not_matter(client: Client) -> None:
    """A row's answer is its own."""
    columns = applications("a", 24)
    whole = client.decide(columns, dry_run=True)
    order = np.random.default_rng(1).permutation(24).tolist()
    shuffled = client.decide(picked(columns, order), dry_run=True)
    assert shuffled.score.tobytes() == whole.score[order].tobytes()
    alone = join([client.decide(picked(columns, [row])) for row in range(24)])
    assert alone.score.tobytes() == whole.score.tobytes()
    assert alone.decision.tolist() == whole.decision.tolist()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("income", -1.0, "income: -1.0: is not within 0 … 1e+07"),
        ("transaction_id", "", 'transaction_id: "": is empty'),
        ("event_time", 1, "event_time: 1: is before the year 2000"),
        ("housing", "x" * 129, "has 129 bytes, 128 are allowed"),
    ],
)
def test_a_bad_row_fails_alone(
    client: Client, field: str, value: object, words: str
) -> None:
    """It is named by field; the other rows are answered as without it."""
    columns = applications("b", 4)
    good = client.decide(columns, dry_run=True)
    column = list(columns[field])  # type: ignore[call-overload]
    column[1] = value
    mixed = client.decide(columns | {field: column}, dry_run=True)
    assert words in mixed.error[1]
    assert math.isnan(mixed.score[1])
    rest = [0, 2, 3]
    assert mixed.error[rest].tolist() == [""] * 3
    assert mixed.score[rest].tobytes() == good.score[rest].tobytes()


def test_there_is_no_amount_to_send(served: Embedded) -> None:
    """Triton refuses the tensor by name."""
    inputs = {**loans_product.INPUTS, "amount": "FP64"}
    with (
        Client(
            served.grpc_url, product=loans_product.NAME, inputs=inputs, timeout_s=20
        ) as other,
        pytest.raises(InvalidRequest, match="amount"),
    ):
        other.decide({"transaction_id": ["x"], "event_time": [1], "amount": [1.0]})


def test_an_amount_that_nobody_reads_is_found(repository: Path, tmp_path: Path) -> None:
    """`check` names the configuration that still asks callers for it."""
    copy = tmp_path / "model_repository"
    shutil.copytree(repository, copy)
    path = copy / "loans_features/config.pbtxt"
    text = path.read_text()
    more = '{ name: "amount" data_type: TYPE_FP64 dims: [ 1 ] optional: true },'
    path.write_text(text.replace("input [", f"input [ {more}", 1))
    (found,) = check(RepositorySnapshot(copy), product=loans_product.NAME)
    assert found.code == "TG314"
    assert f"{path}: input amount: features.yaml says `amount: false`" in str(found)


def test_a_dry_run_keeps_nothing(served: Embedded, client: Client) -> None:
    """Neither in the store nor in the journal; a real run then answers the same."""
    columns = applications("d", 5)
    dry = client.decide(columns, dry_run=True)
    with redis.Redis.from_url(served.store_url) as store:
        assert store.dbsize() == 0
    wet = client.decide(columns)
    assert wet.score.tobytes() == dry.score.tobytes()
    assert wet.decision.tolist() == dry.decision.tolist()


def test_a_decision_stands_for_its_id(served: Embedded, client: Client) -> None:
    """The same again is the same answer; anything else under the id is a conflict."""
    columns = applications("i", 3)
    first = client.decide(columns)
    journalled(served, rows=3)
    with redis.Redis.from_url(served.store_url) as store:
        store.sadd("tollgate:loans:list:withdrawn", "i0", "i1", "i2", "j0")
        kept = {name.decode().split(":")[2] for name in store.keys("tollgate:loans:*")}
    assert kept == {"decided", "journal", "list"}  # no values of entities, no watermark
    again = client.decide(columns)
    assert again.score.tobytes() == first.score.tobytes()
    assert again.decision.tolist() == first.decision.tolist()
    assert again.reason_codes == first.reason_codes
    debt = [-1.0, *columns["debt"][1:]]  # type: ignore[index]
    other = client.decide(columns | {"debt": debt})
    assert "conflict: was decided with other" in other.error[0]
    assert other.error[1:].tolist() == ["", ""]
    listed = client.decide(applications("j", 2))
    assert listed.reason_codes[0] == ("WITHDRAWN",)
    assert "WITHDRAWN" not in listed.reason_codes[1]


def test_the_journal_has_what_was_decided(
    served: Embedded, client: Client, loans: FeatureSpec
) -> None:
    """Ids, time, fields, vector and score; no entity and no cents."""
    columns = applications("k", 9)
    answer = client.decide(columns)
    (record,) = journalled(served, rows=9)
    assert record.entities == ()
    assert record.transaction_id == [f"k{row}".encode() for row in range(9)]
    assert record.event_time_us.tolist() == columns["event_time"]
    assert not record.cents.any()
    assert record.score.tobytes() == answer.score.tobytes()
    table = pl.DataFrame(columns)
    offline = build(loans, history_of(table, spec=loans, source="asked"))
    assert record.features.tobytes() == offline.astype(np.float32).tobytes()
    own = [clusters([one]).item() for one in record.transaction_id]
    assert recorded_decisions(record).cluster.tolist() == own


def run(*arguments: str) -> str:
    """Run a command that must succeed; its output in one line."""
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return " ".join(done.output.split())


def test_decisions_are_sealed_explained_replayed_and_forgotten(
    served: Embedded, client: Client, repository: Path, tmp_path: Path
) -> None:
    """By their own ids, which are the people of such a product; and without money."""
    folder = tmp_path / "journal"
    client.decide(applications("z", 32))
    journalled(served, rows=32)
    product = ("--product", loans_product.NAME)
    where = ("--folder", str(folder), "--journal-url", served.store_url)
    models = ("--repository", str(repository))
    run("explain", "z7", *product, *where, *models)
    run("journal", "run", *product, *where, *models, "--until-idle")
    assert "as sealed" in run("journal", "verify", str(folder))
    replayed = run("journal", "replay", str(folder), *product, *models)
    assert "loans-1: 32 of 32 the same" in replayed
    sealed = run("explain", "z7", *product, *where, *models)
    assert "moved the score by" in sealed
    (at,) = np.flatnonzero(loans_product.table(32, seed=7)["years"].is_nan())[:1]
    lacking = run("explain", f"z{at}", *product, *where, *models, "--json")
    parts = json.loads(lacking)["contributions"]
    assert [one["value"] for one in parts if one["feature"] == "years"] == [None]
    table = pl.concat([pl.read_parquet(one) for one in folder.glob("*.segment.*")])
    assert table["transaction"].n_unique() == 32
    assert not any("z7" in one for one in table["transaction"])
    erased = run(
        "journal", "erase", "--subject", "transaction=z7", "--folder", str(folder)
    )
    assert "erased 1 of 1" in erased
    lost = CliRunner().invoke(app, ["explain", "z7", *product, *where, *models])
    assert isinstance(lost.exception, InputError)


def journalled(served: Embedded, *, rows: int, last: bytes = b"") -> list[Records]:
    """Read the stream once it holds so many records, and one of this id."""
    until_s = time.monotonic() + PATIENCE_S
    with redis.Redis.from_url(served.store_url) as store:
        while True:
            found = [one for _, one in store.xrange(stream_key(loans_product.NAME))]
            chunks = [
                decode_chunk(one[CHUNK_FIELD]) for one in found if CHUNK_FIELD in one
            ]
            ids = [one for chunk in chunks for one in chunk.transaction_id]
            if len(ids) >= rows and (not last or last in ids):
                return chunks
            assert time.monotonic() < until_s, f"{chunks} in the journal"
            time.sleep(0.02)

"""A device decides as an engine does, and its disk has what it acknowledged."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import redis
from tritonclient.grpc import service_pb2, service_pb2_grpc
from typer.testing import CliRunner

from tests.support.edge.bundles import REPOSITORY, Keys, packed
from tollgate import Engine
from tollgate.cli.app import app
from tollgate.edge.device import Ask, Device
from tollgate.edge.device_store import DATABASE, JOURNAL
from tollgate.edge.grpc_port import GrpcPort
from tollgate.errors import InputError, JournalError, SetupError
from tollgate.features.spec.feature_spec import all_fields, wire_inputs
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.journal_opening import open_writer
from tollgate.journal.journal_rows import Heading
from tollgate.load.synthetic import synthetic_purchases
from tollgate.repair.spool_segments import read_segment, segments
from tollgate.repository.releases.release_history import settle
from tollgate_client import Client, ClientError

NOW_US = time.time_ns() // 1000


def purchases(first: int, count: int, *, seed: int = 1) -> dict[str, list[object]]:
    """Make purchases of a few customers and terminals."""
    draw = np.random.default_rng([seed, first])
    return {
        "transaction_id": [f"t{first + row}" for row in range(count)],
        "customer_id": [f"c{one}" for one in draw.integers(0, 5, count)],
        "terminal_id": [f"m{one}" for one in draw.integers(0, 3, count)],
        "amount": (draw.integers(100, 300_000, count) / 100).tolist(),
        "event_time": [NOW_US + first + row for row in range(count)],
    }


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare answers bit by bit."""
    assert found.keys() == wanted.keys()
    for name, column in wanted.items():
        if column.dtype == np.object_:
            assert found[name].tolist() == column.tolist()
        else:
            assert found[name].tobytes() == column.tobytes()


def test_answers_are_those_of_an_engine_over_restarts(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """Three starts of the device, with one life of an engine in memory."""
    with Engine.open(REPOSITORY, product="fraud") as engine:
        for start in range(3):
            with Device.open(bundle, key=keys.public, state=tmp_path) as device:
                for part in range(4):
                    rows = purchases(start * 400 + part * 100, 100)
                    wanted = engine.decide(rows, now_us=NOW_US)
                    dry = device.decide(rows, now_us=NOW_US, dry_run=True)
                    assert dry["decision"].tolist() != [""] * 100
                    assert_same(device.decide(rows, now_us=NOW_US), wanted)


def test_a_first_decision_stands_after_a_restart(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """The same row gets it again; another row with that id gets an error."""
    rows = purchases(0, 3)
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        first = device.decide(rows)
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        assert_same(device.decide(rows), first)
        other = device.decide(rows | {"amount": [1.0, 2.0, 3.0]})
        assert all("was decided with other content" in one for one in other["error"])


def test_threads_share_commits_and_fail_alone(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """Each thread has its answers; one with a wrong column has an error, each time."""
    answers: dict[int, int] = {}
    errors: list[str] = []

    def work(device: Device, thread: int) -> None:
        for part in range(20):
            rows = purchases(10_000 * thread + 40 * part, 40)
            if thread == 3:
                rows["event_time"][35] = "now"
                try:
                    device.decide(rows)
                except InputError as error:
                    errors.append(str(error))
                continue
            found = device.decide(rows)
            answers[thread] = answers.get(thread, 0) + np.sum(found["decision"] != "")

    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        threads = [
            threading.Thread(target=work, args=(device, number)) for number in range(5)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert answers == {0: 800, 1: 800, 2: 800, 4: 800}
    assert len(errors) == 20
    assert all("event_time" in one for one in errors)
    records = [one for chunk in sealed(tmp_path) for one in chunk.transaction_id]
    assert len(records) == len(set(records)) == 3_200
    assert not {b"t%d" % one for one in range(30_000, 31_000)} & set(records)


def together(device: Device, requests: list[tuple[Any, bool]]) -> list[Any]:
    """Let requests wait for a device in their order; return answers and errors."""
    found: list[Any] = [None] * len(requests)

    def ask(place: int, columns: Any, dry_run: bool) -> None:
        try:
            found[place] = device.decide(columns, dry_run=dry_run)
        except InputError as error:
            found[place] = error

    threads = []
    with device._store.lock:
        for place, (columns, dry_run) in enumerate(requests):
            one = threading.Thread(target=ask, args=(place, columns, dry_run))
            one.start()
            threads.append(one)
            while len(device._waiting) <= place:
                time.sleep(0.001)
    for one in threads:
        one.join()
    return found


def test_requests_that_wait_are_decided_in_batches(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """Of 32 rows at most, with the answers that each has alone, dry runs among them."""
    sizes = [1, 3, 1, 30, 2, 40, 1, 1, 0, 5]
    firsts = np.cumsum([0, *sizes]).tolist()
    requests = [
        (purchases(first, size), place % 4 == 2)
        for place, (first, size) in enumerate(zip(firsts, sizes, strict=False))
    ]
    for columns, _ in requests[::2]:  # a port reads columns as arrays
        for name in ("amount", "event_time"):
            columns[name] = np.array(columns[name])
    with Engine.open(REPOSITORY, product="fraud") as engine:
        wanted = [engine.decide(one, dry_run=dry) for one, dry in requests]
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        found = together(device, requests)
        (count,) = device._store._database.execute(
            "SELECT count(*) FROM log WHERE records > 0"
        ).fetchone()
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)
    # 1+3+1, 30+2, 32+8 of the 40 alone, 1+1+0+5.
    assert count == 5
    records = [one for chunk in sealed(tmp_path) for one in chunk.transaction_id]
    assert records == [
        b"t%d" % one
        for first, size, (_, dry) in zip(firsts, sizes, requests, strict=False)
        for one in range(first, first + size)
        if not dry
    ]


def test_a_wrong_request_in_a_batch_fails_alone(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """A missing column, a wrong type, a bad row; an id that stands twice."""
    good, lacking, wrong, bad, last = (purchases(row, 1) for row in range(5))
    del lacking["amount"]
    wrong["event_time"] = ["now"]
    bad["customer_id"] = [""]
    other = good | {"amount": [1.0]}
    requests = [(one, False) for one in (good, lacking, wrong, bad, good, other, last)]
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        found = together(device, requests)
        alone = together(device, [(good, False), (bad, False), (other, False)])
    assert isinstance(found[1], InputError)
    assert "amount" in str(found[1])
    assert isinstance(found[2], InputError)
    assert "event_time" in str(found[2])
    assert "customer_id" in found[3]["error"][0]
    assert found[3]["release"].tolist() == [""]
    assert_same(found[4], found[0])
    assert "was decided with other content" in found[5]["error"][0]
    assert found[6]["decision"].tolist() != [""]
    assert_same(alone[0], found[0])
    assert_same(alone[1], found[3])
    assert_same(alone[2], found[5])
    records = [one for chunk in sealed(tmp_path) for one in chunk.transaction_id]
    assert sorted(records) == [b"t0", b"t4"]


def sealed(state: Path, product: str = "fraud") -> list[Any]:
    """Decode the chunks of sealed segments, in the order of their names."""

    return [
        decode_chunk(raw)
        for path in segments(state / JOURNAL / product)
        for raw in read_segment(path, path.read_bytes()).events
    ]


def test_an_interrupt_is_an_error_for_all_who_wait(
    bundle: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the thread that decides for others; the device goes on."""
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        first = device.decide(purchases(0, 2))
        asks = [Ask(purchases(2, 1)), Ask(purchases(3, 1))]

        def interrupted() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(device._store, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                device.answer(asks)
        assert [str(one.error).partition(": ")[2] for one in asks] == [
            "the decisions may be written, or not: KeyboardInterrupt()"
        ] * 2
        assert_same(device.decide(purchases(0, 2)), first)
        assert device.decide(purchases(2, 2))["decision"].tolist() != ["", ""]
    records = [one for chunk in sealed(tmp_path) for one in chunk.transaction_id]
    assert records == [b"t0", b"t1", b"t2", b"t3"]


def test_nothing_of_a_failed_commit_remains(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """A full database refuses the rows; there is room again, and they are decided."""
    with (
        Engine.open(REPOSITORY, product="fraud") as engine,
        Device.open(bundle, key=keys.public, state=tmp_path) as device,
    ):
        rows = purchases(0, 32), purchases(32, 320), purchases(400, 32)
        assert_same(
            device.decide(rows[0], now_us=NOW_US),
            engine.decide(rows[0], now_us=NOW_US),
        )
        run = device._store._database.execute
        (pages,) = run("PRAGMA page_count").fetchone()
        run(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(JournalError, match="could not be written: database or dis"):
            device.decide(rows[1], now_us=NOW_US)
        run("PRAGMA max_page_count = 1000000")
        for one in rows[1:]:
            assert_same(
                device.decide(one, now_us=NOW_US), engine.decide(one, now_us=NOW_US)
            )
    numbers = [one.first_sequence for one in sealed(tmp_path)]
    assert numbers == list(range(0, 384, 32))


def test_an_older_bundle_is_refused(bundle: Path, keys: Keys, tmp_path: Path) -> None:
    """The folder remembers the newest sequence; the same one opens again."""
    newer = tmp_path / "newer"
    shutil.copytree(REPOSITORY, newer)
    path = newer / "fraud" / "release.json"
    path.write_text(path.read_text().replace('"reason": "', '"reason": "again: '))
    history = newer / "fraud" / "history.jsonl"
    original = path.read_text()
    settle(newer, "fraud")
    path.write_text(original.replace("again: ", "and again: "))
    assert history.exists()
    second = packed(keys, tmp_path, repository=newer)
    for one in (bundle, bundle, second, second):
        Device.open(one, key=keys.public, state=tmp_path / "state").close()
    with pytest.raises(InputError, match=r"has sequence 1, but .* had 2: it is older"):
        Device.open(bundle, key=keys.public, state=tmp_path / "state")


def test_a_folder_of_another_product_or_in_use_is_refused(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """In one line each; a damaged database, too."""
    state = tmp_path / "state"
    sensors = packed(keys, tmp_path, "sensors")
    with (
        Device.open(bundle, key=keys.public, state=state),
        pytest.raises(SetupError, match="is in use"),
    ):
        Device.open(bundle, key=keys.public, state=state)
    with pytest.raises(InputError, match="is of fraud, not sensors"):
        Device.open(sensors, key=keys.public, state=state)
    with pytest.raises(InputError, match="is of fraud, not sensors"):
        Device.open(bundle, key=keys.public, state=state, product="sensors")
    (state / DATABASE).write_bytes(b"no database at all, but of some length" * 200)
    with pytest.raises(InputError, match="is damaged, or no database of a device"):
        Device.open(bundle, key=keys.public, state=state)
    device = Device.open(bundle, key=keys.public, state=tmp_path / "other")
    device.close()
    device.close()
    with pytest.raises(InputError, match="is closed"):
        device.decide(purchases(0, 1))


def test_a_spool_is_bounded_and_the_loss_is_a_gap(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """The oldest segments are deleted; what is left follows without a gap."""
    most = 3 << 20
    with Device.open(
        bundle, key=keys.public, state=tmp_path, spool_bytes=most
    ) as device:
        for part in range(15):
            device.decide(purchases(part * 2_000, 2_000))
            device._store.keep_up()
        with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
            (waiting,) = database.execute(
                "SELECT sum(length(chunk)) FROM log WHERE first >= "
                "(SELECT value FROM facts WHERE name = 'sealed')"
            ).fetchone()
        assert waiting < 1 << 20
    size = sum(path.stat().st_size for path in (tmp_path / JOURNAL).rglob("*.spool"))
    assert 2 << 20 < size <= most
    chunks = sealed(tmp_path)
    assert chunks[0].first_sequence > 0
    numbers = [
        number
        for one in chunks
        for number in range(one.first_sequence, one.first_sequence + len(one))
    ]
    assert numbers == list(range(numbers[0], 30_000))


def test_expired_values_are_deleted(bundle: Path, keys: Keys, tmp_path: Path) -> None:
    """Stored decisions go after their window; windows stay."""
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        device.decide(purchases(0, 64))
        device._store._write_values()
        run = device._store._database.execute
        stored = "CAST(key AS TEXT) LIKE '%:decided:%'"
        count = f"SELECT count(*) FROM entries WHERE {stored}"
        assert run(count).fetchone() == (64,)
        (windows,) = run("SELECT count(*) FROM entries").fetchone()
        run(f"UPDATE entries SET end_ms = 1 WHERE {stored}")
        for _ in range(4):  # each looks at a part of the table
            device._store.keep_up()
        assert run(count).fetchone() == (0,)
        assert run("SELECT count(*) FROM entries").fetchone() == (windows - 64,)


def test_the_write_ahead_log_starts_again(
    bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """It does not grow with the number of decisions."""
    wal = tmp_path / f"{DATABASE}-wal"
    sizes = []
    with Device.open(bundle, key=keys.public, state=tmp_path) as device:
        for part in range(1_600):
            device.decide(purchases(part * 32, 32))
            if part % 40 == 39:
                device._store.keep_up()
                sizes.append(wal.stat().st_size)
    # It is overwritten: without that it would have some hundred MiB.
    assert 16 << 20 < max(sizes) < 48 << 20


@pytest.mark.parametrize("product", ["fraud", "sensors"])
def test_the_client_reaches_a_device(
    product: str, *, bundle: Path, keys: Keys, tmp_path: Path
) -> None:
    """Rows, bad rows, a dry run, a foreign product; the names of tensors."""
    path = bundle if product == "fraud" else packed(keys, tmp_path, product)
    with (
        Engine.open(REPOSITORY, product=product) as engine,
        Device.open(path, key=keys.public, state=tmp_path / "state") as device,
        GrpcPort(device, address="127.0.0.1:0") as server,
    ):
        rows = synthetic_purchases(device.spec, 32, seed=3, first_us=NOW_US)
        with Client(
            f"127.0.0.1:{server.port}",
            product=product,
            inputs=wire_inputs(device.spec),
            fields=all_fields(device.spec),
            timeout_s=60.0,
        ) as client:
            wanted = engine.decide(rows, dry_run=True)
            for dry in (True, True, False):
                found = client.decide(rows, dry_run=dry)
                assert found.score.tobytes() == wanted["score"].tobytes()
                assert found.decision.tolist() == wanted["decision"].tolist()
            rows["transaction_id"][3] = ""
            mixed = client.decide(rows)
            assert [bool(one) for one in mixed.error] == [row == 3 for row in range(32)]
        channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        other = service_pb2.ModelInferRequest(model_name="other")
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(other)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(service_pb2.ModelInferRequest(model_name=product))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "missing" in caught.value.details()
        ready = service_pb2.ModelReadyRequest
        assert stub.ModelReady(ready(name=product)).ready
        assert not stub.ModelReady(ready(name="other")).ready
        described = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=product))
        assert {one.name for one in described.inputs} >= set(wire_inputs(device.spec))
        channel.close()


def test_an_error_nobody_foresaw_keeps_no_caller_waiting(
    bundle: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the error of that request; the next one is answered."""

    def broken(asks: object) -> None:
        raise RuntimeError("unforeseen")

    with (
        Device.open(bundle, key=keys.public, state=tmp_path) as device,
        GrpcPort(device, address="127.0.0.1:0") as server,
        Client(f"127.0.0.1:{server.port}", product="fraud", timeout_s=60.0) as client,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(device, "answer", broken)
            with pytest.raises(ClientError, match="failed: RuntimeError"):
                client.decide(purchases(0, 1))
        assert client.decide(purchases(0, 1)).decision[0]


def test_the_centre_seals_the_journal_of_a_device(
    bundle: Path,
    keys: Keys,
    tmp_path: Path,
    *,
    store_url: str,
    redis_client: redis.Redis,
) -> None:
    """Its segments are drained, sealed into the chain, and verified, every record."""
    with Device.open(bundle, key=keys.public, state=tmp_path / "device") as device:
        for part in range(3):
            device.decide(purchases(part * 50, 50))
    spool = tmp_path / "server" / "journal-spool"
    shutil.copytree(tmp_path / "device" / JOURNAL, spool)
    heading = Heading("fraud", "next", 0, entities=(), fields=())
    writer = open_writer(store_url, heading, folder=str(spool))
    until_s = time.monotonic() + 60
    while list((spool / "fraud").glob("*.spool")):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    writer.close()
    folder = tmp_path / "chain"
    where = ["--folder", str(folder), "--repository", str(REPOSITORY)]
    where += ["--journal-url", store_url]
    for arguments, words in (
        (["run", *where, "--until-idle"], "sealed 150 decisions"),
        (["verify", str(folder)], "150 decisions: as sealed"),
    ):
        done = CliRunner().invoke(app, ["journal", *arguments])
        assert done.exit_code == 0, done.output
        assert words in " ".join(done.output.split())

"""Hysteresis has one answer and one journal in every form of a product."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import redis
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.support.checkout import checkout_environment
from tests.support.policy.hysteresis_oracle import Machine
from tests.support.products.press_product import (
    NAME,
    POLICY,
    readings,
    write_press,
)
from tollgate import Engine
from tollgate.audit.chain.anchor import AnchorFile
from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.journal_replay import replay
from tollgate.audit.releases.record_rows import read_table
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer
from tollgate.engine.hysteresis_stage import EVIDENCE_FIELDS
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.stream_entries import stream_key
from tollgate.policy import load_policy
from tollgate.redecide import compare_policies, read_rows
from tollgate.repository.releases.rendering import merged_configs
from tollgate.repository.releases.served_versions import served_spec
from tollgate.repository.slo import Form
from tollgate.schema import Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.store.hysteresis_states import hysteresis_key
from tollgate.testing.supervised import supervised

S = 1_000_000
NOW_US = time.time_ns() // 1000 - 6 * 3_600 * S
FORMS: tuple[Form, ...] = ("ensemble", "fused")
MACHINES = 6
COUNT = 900
LEVELS = {"approve": 0, "review": 1, "decline": 2}
OWN_CODES = {"RAISED", "HELD", "UNCONFIRMED", "COOLING_DOWN", "LATE"}
TIMES = {"writer", "decided_us", "features_us", "model_us", "decision_us"}
PATIENCE_S = 600.0

PLAIN = (  # without the section
    POLICY[: POLICY.index("hysteresis:")]
    + POLICY[POLICY.index("reasons:") : POLICY.index("  RAISED:")]
)
Row = tuple[str, str, int, float]


def digest(name: str) -> bytes:
    """Hash a transaction id as docs/contract.md says."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def raw_level(temperature: float) -> int:
    """Return what the policy's two rules make of a temperature."""
    return (temperature >= 80) + (temperature >= 95)


class Plant:
    """All machines, decided by the plain rules; batches as the steps form them."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}

    def read(self, batch: list[Row]) -> list[tuple[int, str]]:
        """Decide a batch: per machine in the order of (time, hash of the id)."""
        found: dict[int, tuple[int, str]] = {}
        order = sorted(
            range(len(batch)), key=lambda at: (batch[at][2], digest(batch[at][0]))
        )
        for at in order:
            name, machine, time_us, temperature = batch[at]
            one = self.machines.setdefault(
                machine,
                Machine(of=5, at_least=3, hold_us=60 * S, cool_down_us=600 * S),
            )
            level = raw_level(temperature)
            found[at] = one.read(time_us, digest(name), level)
        return [found[at] for at in range(len(batch))]


def plant_rows(*, seed: int, prefix: str) -> list[Row]:
    """Draw readings of some machines: spells of heat, late ones, equal instants."""
    rng = np.random.default_rng(seed)
    hot = np.zeros(MACHINES, np.bool_)
    clock = NOW_US
    rows: list[Row] = []
    for at in range(COUNT):
        clock += int(rng.choice([0, S, 3 * S, 10 * S]))
        machine = int(rng.integers(0, MACHINES))
        hot[machine] ^= rng.random() < 0.12
        late = int(rng.choice([0, 0, 0, 0, 5 * S, 40 * S, 900 * S]))
        base = 84.0 if hot[machine] else 55.0
        temperature = round(float(base + rng.normal(0, 8)), 1)
        rows.append((f"{prefix}{at}", f"{prefix}m{machine}", clock - late, temperature))
    return rows


def batches(rows: list[Row]) -> list[list[Row]]:
    """Split rows into requests of 1 to 32."""
    sizes = np.random.default_rng(4).integers(1, 33, len(rows)).tolist()
    edges = [*itertools.takewhile(lambda at: at < len(rows), np.cumsum([0, *sizes]))]
    return [rows[a:b] for a, b in itertools.pairwise([*edges, len(rows)])]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product of readings."""
    folder = tmp_path_factory.mktemp("press") / "model_repository"
    write_press(folder)
    return folder


@pytest.fixture(scope="module")
def servers(repository: Path) -> Iterator[dict[Form, Embedded]]:
    """The product in both forms, each server with its own store."""
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(
                serve(
                    repository,
                    products=(NAME,),
                    state=repository.parent / form,
                    form=form,
                )
            )
            for form in FORMS
        }


def ask(server: Embedded, rows: list[Row]) -> dict[str, list[Any]]:
    """Send one request of readings."""
    return ask_at(server.grpc_url, rows)


def ask_at(url: str, rows: list[Row]) -> dict[str, list[Any]]:
    """Send one request of readings to an address."""
    kinds = (np.object_, np.object_, np.int64, np.float64)
    tensors = []
    for (name, column), kind in zip(readings(*rows).items(), kinds, strict=True):
        values = [one.encode() if isinstance(one, str) else one for one in column]
        array = np.array(values, kind)[:, None]
        tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    with InferenceServerClient(url) as client:
        answer = client.infer(NAME, tensors, client_timeout=60)
        names = [one.name for one in answer.get_response().outputs]
        found = {name: answer.as_numpy(name)[:, 0] for name in names}
    return {
        name: [
            one.decode() if isinstance(one, bytes) else one for one in column.tolist()
        ]
        for name, column in found.items()
    }


def said(answer: dict[str, Any]) -> list[tuple[int, str]]:
    """Take level and own code out of an answer."""
    found = []
    for decision, codes in zip(answer["decision"], answer["reason_codes"], strict=True):
        own = [one for one in str(codes).split("|") if one in OWN_CODES]
        found.append((LEVELS[decision], own[0] if own else "NONE"))
    return found


def records_of(server: Embedded) -> list[Records]:
    """Read the chunks of the journal's stream."""
    with redis.Redis.from_url(server.store_url) as store:
        return [
            decode_chunk(entry[b"c"])
            for _, entry in store.xrange(stream_key(NAME))
            if b"c" in entry
        ]


def rows_of(server: Embedded) -> dict[bytes, tuple[Any, ...]]:
    """Read the journal by transaction id, without what is a time."""
    found = {}
    for chunk in records_of(server):
        for row, name in enumerate(chunk.transaction_id):
            values: list[Any] = [chunk.release, chunk.entity_id[0][row]]
            values += [(key, int(one[row])) for key, one in chunk.fields.items()]
            for key in chunk.__struct_fields__:
                column = getattr(chunk, key)
                if isinstance(column, np.ndarray) and key not in TIMES:
                    values.append((key, column[row].tobytes()))
            found[name] = (*values, chunk.reason_codes[row])
    return found


def wait_journaled(server: Embedded, names: set[bytes]) -> None:
    """Wait until the journal has a record of each of these readings."""
    until_s = time.monotonic() + PATIENCE_S
    while not names <= rows_of(server).keys():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.slow
def test_all_forms_answer_as_the_plain_rules_and_journal_alike(
    servers: dict[Form, Embedded], repository: Path, tmp_path: Path
) -> None:
    """Hundreds of readings in requests of 1 to 32; each record decides again."""
    rows = plant_rows(seed=6, prefix="a")
    plant = Plant()
    codes: set[str] = set()
    with (
        EmbeddedRedis(tmp_path / "redis") as store,
        Engine.open(repository, product=NAME, store=store.url) as local,
        Engine.open(repository, product=NAME) as in_memory,
    ):
        for batch in batches(rows):
            wanted = plant.read(batch)
            codes |= {code for _, code in wanted}
            answers = {form: ask(server, batch) for form, server in servers.items()}
            assert answers["fused"] == answers["ensemble"]
            assert said(answers["fused"]) == wanted
            assert not any(
                bits & Degraded.HYSTERESIS_UNREAD
                for bits in answers["fused"]["degraded"]
            )
            for engine in (local, in_memory):
                own = engine.decide(readings(*batch))
                assert {name: one.tolist() for name, one in own.items()} == {
                    name: answers["fused"][name] for name in own
                }
    assert codes == {*OWN_CODES, "NONE"}
    names = {name.encode() for name, *_ in rows}
    for server in servers.values():
        wait_journaled(server, names)
    found = {form: rows_of(server) for form, server in servers.items()}
    assert {name: found["fused"][name] for name in names} == {
        name: found["ensemble"][name] for name in names
    }


@pytest.mark.slow
def test_a_replay_of_the_sealed_journal_differs_nowhere(
    servers: dict[Form, Embedded], repository: Path, tmp_path: Path
) -> None:
    """With maintenance, repeated and late readings; a changed level is found."""
    server = servers["ensemble"]
    rows = plant_rows(seed=8, prefix="b")[:300]
    with redis.Redis.from_url(server.store_url) as store:
        store.sadd(f"tollgate:{NAME}:list:serviced", "bm1")
    for batch in batches(rows):
        answer = ask(server, batch)
        for row, codes in zip(batch, answer["reason_codes"], strict=True):
            if row[1] == "bm1":
                assert not OWN_CODES & {*codes.split("|")}
    wait_journaled(server, {name.encode() for name, *_ in rows})
    records = records_of(server)
    assert all(EVIDENCE_FIELDS[0] in one.fields for one in records)
    found = again(records, repository, tmp_path / "good")
    (part,) = found.parts
    assert part.problem == ""
    assert (part.same, part.differing) == (part.rows, 0)
    assert part.rows >= 300
    place = next(at for at, one in enumerate(records) if (one.decision[0] != 1).all())
    changed = records[place].decision.copy()
    changed[0] = 1
    records[place] = msgspec.structs.replace(records[place], decision=changed)
    (part,) = again(records, repository, tmp_path / "bad").parts
    assert (part.differing, part.aspects) == (1, {"decision": 1})


def table_of_first(folder: Path, row: int) -> dict[str, Any]:
    """Read a record of the first sealed segment."""
    chain = Chain(
        folder / "journal", product=NAME, anchor=AnchorFile(folder / "anchor")
    )
    table = read_table(chain.folder, chain.alive("segment")[0])
    return table.row(row, named=True)


def again(records: list[Records], repository: Path, folder: Path) -> Any:
    """Seal records, and decide them again."""
    folder.mkdir()
    chain = Chain(
        folder / "journal", product=NAME, anchor=AnchorFile(folder / "anchor")
    )
    releases = ReleaseArchive(chain, repository=repository)
    subjects = Subjects(folder / "keys")
    Sealer(chain, subjects=subjects, releases=releases).seal(records)
    return replay(chain, releases, repository=repository)


@pytest.mark.slow
def test_a_simulation_runs_the_sequence_from_an_empty_state(
    servers: dict[Form, Embedded], repository: Path, tmp_path: Path
) -> None:
    """In the order of event times: as if each reading had come alone, in time."""
    server = servers["fused"]
    drawn = plant_rows(seed=9, prefix="c")[:200]
    # No equal instants: their order is that of the pseudonyms in a sealed journal.
    rows = [(*one[:2], one[2] + at, one[3]) for at, one in enumerate(drawn)]
    for batch in batches(rows):
        ask(server, batch)
    wait_journaled(server, {name.encode() for name, *_ in rows})
    own = [
        one
        for one in records_of(server)
        if any(name.startswith(b"c") for name in one.transaction_id)
    ]
    sealed = tmp_path / "sealed"
    again(own, repository, sealed)
    spec = served_spec(repository, product=NAME)
    policy = load_policy(
        repository / f"{NAME}_decision/1/policy.yaml",
        feature_names=spec.feature_names,
        fields=spec.fields,
        id_names=spec.id_names,
        amount=False,
    )
    past = read_rows(
        sealed / "journal",
        policies=[policy],
        feature_names=spec.feature_names,
        fields=spec.fields,
        amount=False,
    )
    outcome = compare_policies(past, new=policy)
    plant = Plant()
    wanted = [0, 0, 0]
    for row in sorted(rows, key=lambda one: one[2]):
        ((level, _),) = plant.read([row])
        wanted[level] += 1
    assert outcome.rows == len(rows)
    assert np.array(outcome.matrix).sum(axis=0).tolist() == wanted
    assert min(wanted[:2]) > 20


def test_permuted_batches_have_the_same_answers(repository: Path) -> None:
    """The order of rows inside a batch does not matter, nor other machines in it."""
    rows = plant_rows(seed=12, prefix="d")[:320]
    rng = np.random.default_rng(13)
    with (
        Engine.open(repository, product=NAME) as one,
        Engine.open(repository, product=NAME) as other,
    ):
        for start in range(0, len(rows), 32):
            batch = rows[start : start + 32]
            turned = [batch[at] for at in rng.permutation(len(batch)).tolist()]
            wanted = dict(
                zip([row[0] for row in batch], said(decide(one, batch)), strict=True)
            )
            found = said(decide(other, turned))
            assert found == [wanted[row[0]] for row in turned]


def decide(engine: Engine, rows: list[Row], **options: Any) -> dict[str, Any]:
    """Decide readings with the engine."""
    return {
        name: column.tolist()
        for name, column in engine.decide(readings(*rows), **options).items()
    }


def steady(prefix: str, temperatures: list[float]) -> list[Row]:
    """Make readings of one machine, ten seconds apart."""
    return [
        (f"{prefix}{at}", prefix, NOW_US + at * 10 * S, temperature)
        for at, temperature in enumerate(temperatures)
    ]


def test_a_reading_that_comes_again_has_its_answer(repository: Path) -> None:
    """Without a stored decision: the state knows it, and counts it once."""
    rows = steady("e", [85, 85, 20, 85, 20])
    with Engine.open(repository, product=NAME) as engine:
        answers = [said(decide(engine, [row]))[0] for row in rows]
        assert answers == [
            *((0, "UNCONFIRMED"), (0, "UNCONFIRMED"), (0, "NONE")),
            *((1, "RAISED"), (1, "HELD")),
        ]
        assert said(decide(engine, rows)) == answers
        assert said(decide(engine, rows[::-1])) == answers[::-1]
        twice = steady("f", [85, 85])
        assert said(decide(engine, twice * 2)) == [(0, "UNCONFIRMED")] * 4


def test_a_dry_run_changes_no_state(repository: Path) -> None:
    """It sees earlier readings and its own, and leaves nothing."""
    rows = steady("g", [85, 85, 85, 85])
    with Engine.open(repository, product=NAME) as engine:
        decide(engine, rows[:1])
        tried = decide(engine, rows[1:], dry_run=True)
        assert said(tried)[1:] == [(1, "RAISED"), (1, "NONE")]
        assert said(decide(engine, rows[1:2])) == [(0, "UNCONFIRMED")]
        assert said(decide(engine, rows[2:3])) == [(1, "RAISED")]


def test_without_the_store_the_raw_level_is_answered(
    repository: Path, tmp_path: Path
) -> None:
    """The bit reports it; the state goes on when the store is back."""
    rows = steady("h", [85, 85, 96, 85, 85])
    with Engine.open(
        repository, product=NAME, store=f"unix://{tmp_path}/nowhere.sock"
    ) as engine:
        answer = decide(engine, rows)
    assert [level for level, _ in said(answer)] == [1, 1, 2, 1, 1]
    assert all(bits & Degraded.HYSTERESIS_UNREAD for bits in answer["degraded"])
    assert not any(OWN_CODES & {*one.split("|")} for one in answer["reason_codes"])


def test_a_reading_that_a_late_store_applied_counts_once(
    repository: Path, tmp_path: Path
) -> None:
    """Its answer was its raw level, with the bit; the late reply is nobody's."""
    rows = steady("n", [85.0] * 3)
    with (
        EmbeddedRedis(tmp_path / "redis") as store,
        Engine.open(
            repository, product=NAME, store=store.url, store_deadline_s=2.0
        ) as engine,
    ):
        assert said(decide(engine, rows[:1])) == [(0, "UNCONFIRMED")]
        os.kill(store.pid, signal.SIGSTOP)
        late = decide(engine, rows[1:2])
        os.kill(store.pid, signal.SIGCONT)
        assert said(late) == [(1, "NONE")]
        assert late["degraded"][0] & Degraded.HYSTERESIS_UNREAD
        assert said(decide(engine, rows[2:])) == [(1, "RAISED")]
        assert said(decide(engine, rows[1:2])) == [(0, "UNCONFIRMED")]


def test_a_product_without_the_section_sends_and_records_nothing_more(
    tmp_path: Path,
) -> None:
    """No command, no bit, no column; the same bytes in its journal's chunk."""
    write_press(tmp_path / "plain", policy_text=PLAIN)
    rows = steady("i", [85, 20, 96])
    places = {"journal": tmp_path / "spool", "store": f"memory:{tmp_path}/store"}
    with Engine.open(tmp_path / "plain", product=NAME, **places) as engine:
        answer = decide(engine, rows)
    assert [level for level, _ in said(answer)] == [1, 0, 2]
    assert b"hysteresis" not in (tmp_path / "store").read_bytes()
    spooled = [one.read_bytes() for one in (tmp_path / "spool").rglob("*.spool")]
    assert spooled
    assert not any(b"hysteresis" in one for one in spooled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "part"), [("ensemble", f"{NAME}_decision"), ("fused", NAME)]
)
def test_killed_steps_change_no_answer(
    repository: Path, tmp_path: Path, form: str, part: str
) -> None:
    """Readings are sent again until they have an answer: each counts once."""
    rows = plant_rows(seed=21, prefix="q")[:90]
    rng = np.random.default_rng(22)
    plant = Plant()
    failed = 0
    words = ("up", f"--product={NAME}", f"--form={form}")
    with supervised(repository, state=tmp_path / "state", words=words) as product:
        for at, row in enumerate(rows):
            killer = None
            if at in {20, 60}:
                victim = os.kill, [product.pid(part), signal.SIGKILL]
                killer = threading.Timer(rng.uniform(0, 0.02), *victim)
                killer.start()
            until_s = time.monotonic() + PATIENCE_S
            while True:
                try:
                    answer = ask_at(product.grpc_url, [row])
                    break
                except InferenceServerException:
                    failed += 1
                    assert time.monotonic() < until_s
                    time.sleep(0.05)
            if killer is not None:
                killer.join()
            assert not answer["degraded"][0] & Degraded.HYSTERESIS_UNREAD
            assert said(answer) == plant.read([row])
    assert failed


_KILLED = """\
import json, os, signal, sys
from tests.support.products.press_product import readings
from tollgate import Engine
from tollgate.engine import hysteresis_stage

repository, store, rows = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
whole = hysteresis_stage.answered
hysteresis_stage.answered = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
with Engine.open(repository, product="press", store=store) as engine:
    engine.decide(readings(*rows))
"""


def test_a_release_passes_the_settings_of_the_store_on(tmp_path: Path) -> None:
    """The deadline that the feature step has; not to a policy without hysteresis."""
    write_press(tmp_path / "with", store_deadline_ms=77)
    write_press(tmp_path / "without", policy_text=PLAIN, store_deadline_ms=77)
    found = []
    for folder in ("with", "without"):
        configs = {one.name: one for one in merged_configs(tmp_path / folder, NAME)}
        parameters = configs[f"{NAME}_decision"].parameters
        found.append(
            parameters["store_deadline_ms"].string_value
            if "store_deadline_ms" in parameters
            else None
        )
    assert found == ["77", None]


def test_a_kill_between_state_and_answer_changes_no_answer(
    repository: Path, tmp_path: Path
) -> None:
    """The reading is in the state, unanswered; sent again, it has its one answer."""
    rows = steady("k", [85, 85, 85, 20])
    with EmbeddedRedis(tmp_path / "redis") as store:
        with Engine.open(repository, product=NAME, store=store.url) as engine:
            answers = [said(decide(engine, [row]))[0] for row in rows[:2]]
        text = msgspec.json.encode(rows[2:3]).decode()
        done = subprocess.run(
            [sys.executable, "-c", _KILLED, str(repository), store.url, text],
            env=checkout_environment(),
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        with redis.Redis.from_url(store.url) as client:
            state = client.get(hysteresis_key(NAME, "machine", b"k"))
        assert state is not None
        assert len(state) == 28 + 3 * 17
        with Engine.open(repository, product=NAME, store=store.url) as engine:
            answers += [said(decide(engine, [row]))[0] for row in rows[2:]]
    assert answers == [
        *((0, "UNCONFIRMED"), (0, "UNCONFIRMED")),
        *((1, "RAISED"), (1, "HELD")),
    ]

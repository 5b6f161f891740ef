"""The engine of the committed products decides rows without a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import redis

from tests.support.checkout import checkout_environment
from tests.support.policy.early_rules import UNSCORABLE, release_early_rule
from tests.support.products.small_shop import (
    release_shop,
    small_catalogue,
    write_shop,
)
from tollgate import Engine
from tollgate.errors import InputError, JournalError, SetupError
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.journal_opening import open_writer
from tollgate.journal.journal_rows import Heading
from tollgate.journal.journal_spool import JournalSpool
from tollgate.journal.stream_entries import End, decode_end, stream_key
from tollgate.ranking.rank import bind_rules, rank_row
from tollgate.ranking.ranking_record import decode_ranking, replay_input
from tollgate.repository.releases.served_versions import load_policy_of
from tollgate.schema import STORE_LOST, Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = time.time_ns() // 1000


def purchases(count: int) -> dict[str, list[object]]:
    """Make purchases of one customer."""
    return {
        "transaction_id": [f"t{row}" for row in range(count)],
        "customer_id": ["alice"] * count,
        "terminal_id": [f"m{row}" for row in range(count)],
        "amount": [12.5] * count,
        "event_time": [NOW_US] * count,
    }


def test_a_bad_row_fails_alone() -> None:
    """It has its error; the others are decided, in the name of the release."""
    rows = purchases(70)
    rows["amount"][40] = -1.0
    with Engine.open(REPOSITORY, product="fraud") as engine:
        found = engine.decide(rows)
    good = np.arange(70) != 40
    assert set(found["release"].tolist()) == {"fraud-1"}
    assert set(found["decision"][good].tolist()) <= {"approve", "review", "decline"}
    assert np.isfinite(found["score"][good]).all()
    assert not (found["degraded"] & np.uint32(STORE_LOST)).any()
    assert found["decision"][40] == ""
    assert np.isnan(found["score"][40])
    assert found["error"][40].startswith("amount: -1.0")


def test_a_file_holds_the_windows_between_engines(tmp_path: Path) -> None:
    """The second half is decided as if one engine had decided both."""
    path = tmp_path / "windows.store"
    first, second = purchases(96), purchases(96)
    second["transaction_id"] = [f"later{row}" for row in range(96)]
    with Engine.open(REPOSITORY, product="fraud") as engine:
        whole = engine.decide(first), engine.decide(second)
    store = f"memory:{path}"
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(first, dry_run=True), whole[0], rows=32)
        assert_same(engine.decide(first), whole[0])
        before = os.listdir(tmp_path)
        engine.save()
        assert sorted([*before, path.name]) == sorted(os.listdir(tmp_path))
        assert path.stat().st_mode & 0o777 == 0o600
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(second), whole[1])
    with Engine.open(REPOSITORY, product="fraud") as engine:
        cold = engine.decide(second)
    assert cold["score"].tobytes() != whole[1]["score"].tobytes()


def assert_same(
    found: dict[str, npt.NDArray[Any]],
    wanted: dict[str, npt.NDArray[Any]],
    *,
    rows: int | None = None,
) -> None:
    """Compare columns, their first rows or all."""
    assert found.keys() == wanted.keys()
    for name, column in wanted.items():
        if column.dtype == np.object_:
            assert found[name][:rows].tolist() == column[:rows].tolist(), name
        else:
            assert found[name][:rows].tobytes() == column[:rows].tobytes(), name


def test_a_closed_engine_decides_nothing(tmp_path: Path) -> None:
    """Nothing would save the windows of what it decides."""
    engine = Engine.open(
        REPOSITORY, product="fraud", store=f"memory:{tmp_path / 'windows.store'}"
    )
    engine.close()
    with pytest.raises(InputError, match="the engine: is closed"):
        engine.decide(purchases(1))


def test_a_damaged_file_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    """Nothing is decided with half of the windows, and nothing is overwritten."""
    path = tmp_path / "windows.store"
    with Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}") as engine:
        engine.decide(purchases(3))
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"windows\.store: is damaged"):
        Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}")
    assert path.read_bytes() == damaged
    path.unlink()  # and the failed opening left no lock
    Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}").close()


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    """A folder in its place stands for a full disk: the error names the file."""
    path = tmp_path / "windows.store"
    engine = Engine.open(REPOSITORY, product="fraud", store=f"memory:{path}")
    path.mkdir()
    with pytest.raises(SetupError, match=r"windows\.store cannot be written"):
        engine.close()
    assert [one for one in os.listdir(tmp_path) if not one.endswith(".lock")] == [
        path.name
    ]


def test_one_engine_at_a_time_uses_a_file(tmp_path: Path) -> None:
    """The second would overwrite the windows of the first."""
    store = f"memory:{tmp_path}/windows.store"
    with (
        Engine.open(REPOSITORY, product="fraud", store=store),
        pytest.raises(SetupError, match=r"windows\.store cannot be opened: .* in use"),
    ):
        Engine.open(REPOSITORY, product="fraud", store=store)
    Engine.open(REPOSITORY, product="fraud", store=store).close()


@pytest.mark.parametrize("store", ["", "memry", "memory:", "embedded:", "http://a"])
def test_an_unknown_store_is_refused(store: str) -> None:
    """The error lists the choices, or the schemes of an address."""
    with pytest.raises(InputError, match=r"memory:FILE|redis"):
        Engine.open(REPOSITORY, product="fraud", store=store)


def test_the_embedded_redis_has_the_windows_of_the_state_folder(
    tmp_path: Path,
) -> None:
    """They outlive the engine, and have the bits of a store in memory."""
    store = f"embedded:{tmp_path}"
    rows, more = purchases(40), purchases(40)
    more["transaction_id"] = [f"later{row}" for row in range(40)]
    with Engine.open(REPOSITORY, product="fraud") as engine:
        wanted = engine.decide(rows), engine.decide(more)
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(rows), wanted[0])
    with Engine.open(REPOSITORY, product="fraud", store=store) as engine:
        assert_same(engine.decide(more), wanted[1])


def test_a_row_that_comes_again_gets_its_decision(tmp_path: Path) -> None:
    """Also in the next batch of a call, and from the file; others are refused."""
    rows = purchases(40)
    twice = {name: column * 2 for name, column in rows.items()}
    places = {"store": f"memory:{tmp_path}/windows.store", "journal": tmp_path / "j"}
    with Engine.open(REPOSITORY, product="fraud", **places) as engine:
        found = engine.decide(twice)
        assert_same(part(found, 40, 80), part(found, 0, 40))
    other = {**rows, "amount": [99.0] * 40}
    with Engine.open(REPOSITORY, product="fraud", **places) as engine:
        assert_same(engine.decide(rows), part(found, 0, 40))
        assert all("other content" in one for one in engine.decide(other)["error"])
    with Engine.open(REPOSITORY, product="fraud", store=places["store"]) as engine:
        assert_same(engine.decide(rows), part(found, 0, 40))


def part(
    columns: dict[str, npt.NDArray[Any]], start: int, stop: int
) -> dict[str, npt.NDArray[Any]]:
    """Take some rows."""
    return {name: column[start:stop] for name, column in columns.items()}


def test_records_of_a_folder_reach_the_stream_of_the_next_server(
    tmp_path: Path,
) -> None:
    """Each once, with the end of their writer; bad, dry and repeated rows have none."""
    rows, folder = purchases(70), tmp_path / "journal-spool"
    rows["amount"][40] = -1.0
    with Engine.open(REPOSITORY, product="fraud", journal=folder) as engine:
        engine.decide(rows, dry_run=True)
        engine.decide(rows)
        engine.decide(rows)
        assert len(list((folder / "fraud").glob("*.spool"))) == 1
    heading = Heading("fraud", "next", 0, entities=(), fields=())
    with EmbeddedRedis(tmp_path / "server") as server:
        writer = open_writer(server.url, heading, folder=str(folder))
        with redis.Redis.from_url(server.url) as client:
            until_s = time.monotonic() + 600
            while not (found := ends_in(client)):
                assert time.monotonic() < until_s
                time.sleep(0.02)
            chunks = [
                decode_chunk(entry[b"c"])
                for _, entry in client.xrange(stream_key("fraud"))
                if b"c" in entry
            ]
        writer.close()
    names = [name.decode() for chunk in chunks for name in chunk.transaction_id]
    assert names == [f"t{row}" for row in range(70) if row != 40]
    assert [chunk.first_sequence for chunk in chunks] == [0, 32, 63]
    assert {chunk.release for chunk in chunks} == {"fraud-1"}
    assert found == [End(chunks[0].writer, 69, killed=False)]
    assert not list((folder / "fraud").glob("*.spool"))


def ends_in(client: redis.Redis) -> list[End]:
    """Read the ends of writers in the stream."""
    return [
        decode_end(entry[b"e"])
        for _, entry in client.xrange(stream_key("fraud"))
        if b"e" in entry
    ]


def test_a_decision_without_its_record_is_not_answered(tmp_path: Path) -> None:
    """The call fails with the place; the rows can be decided again."""
    with EmbeddedRedis(tmp_path) as server:
        engine = Engine.open(REPOSITORY, product="fraud", journal=server.url)
        engine.decide(purchases(1))
    with engine, pytest.raises(JournalError, match="2 records from 1 on were not"):
        engine.decide(part_of(purchases(3), 1))


def part_of(rows: dict[str, list[object]], start: int) -> dict[str, list[object]]:
    """Leave out the first rows."""
    return {name: column[start:] for name, column in rows.items()}


def test_a_journal_needs_a_place(tmp_path: Path) -> None:
    """A store in memory has no stream, and a file is no folder."""
    with pytest.raises(JournalError, match="a store in memory has no stream"):
        Engine.open(REPOSITORY, product="fraud", journal="store")
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="file/fraud: cannot be written"):
        Engine.open(REPOSITORY, product="fraud", journal=tmp_path / "file")


def test_credit_is_decided_with_some_of_its_fields() -> None:
    """A declared field may be left out; its rows are marked."""
    rows = {
        "transaction_id": ["a", "b"],
        "amount": [5_000.0, 80_000.0],
        "event_time": [NOW_US, NOW_US],
        "income": [3_000.0, float("nan")],
        "purpose": ["car", ""],
    }
    with Engine.open(REPOSITORY, product="credit") as engine:
        found = engine.decide(rows)
    assert (found["degraded"] & np.uint32(Degraded.FIELD_MISSING)).all()
    assert found["error"].tolist() == ["", ""]


def test_rows_decided_before_the_model_skip_it(tmp_path: Path) -> None:
    """The model fails on these amounts; with one row that needs it, the call fails."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    release_early_rule(copy)
    rows = purchases(3) | {"amount": [UNSCORABLE + 1.0] * 3}
    rows["customer_id"] = ["early", "early", "usual"]
    scored = purchases(2) | {"customer_id": ["early", "usual"]}
    scored["transaction_id"] = ["scored-early", "scored-usual"]
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as server:
        server.sadd("tollgate:fraud:list:stolen_cards", "early")
        places = {"store": store.url, "journal": store.url}
        with Engine.open(copy, product="fraud", **places) as engine:
            found = engine.decide({name: column[:2] for name, column in rows.items()})
            assert found["decision"].tolist() == ["decline"] * 2
            assert np.isnan(found["score"]).all()
            with pytest.raises(Exception, match="out of data bounds"):
                engine.decide(rows)
            assert np.isnan(engine.decide(scored)["score"]).tolist() == [True, False]
        chunks = [
            decode_chunk(entry[b"c"])
            for _, entry in server.xrange(stream_key("fraud"))
            if b"c" in entry
        ]
    assert {
        name: np.isnan(chunk.probabilities[row]).all()
        for chunk in chunks
        for row, name in enumerate(chunk.transaction_id)
    } == {b"t0": True, b"t1": True, b"scored-early": True, b"scored-usual": False}


def test_a_record_of_a_row_decided_early_has_no_probabilities(tmp_path: Path) -> None:
    """Though the model ran for another row of its batch, as in a server."""
    copy = tmp_path / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    release_early_rule(copy)
    rows = purchases(2) | {"customer_id": ["early", "usual"]}
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as server:
        server.sadd("tollgate:fraud:list:stolen_cards", "early")
        with Engine.open(
            copy, product="fraud", store=store.url, journal="store"
        ) as engine:
            engine.decide(rows)
        ((_, entry), *_) = server.xrange(stream_key("fraud"))
    chunk = decode_chunk(entry[b"c"])
    assert np.isnan(chunk.probabilities).tolist() == [[True, True], [False, False]]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the released small shop."""
    repository = tmp_path_factory.mktemp("shop") / "model_repository"
    release_shop(repository, write_shop(repository))
    return repository


def requests(count: int, **more: list[object]) -> dict[str, list[object]]:
    """Make requests of one user."""
    columns: dict[str, list[object]] = {
        "request_id": [f"r{row}" for row in range(count)],
        "user_id": ["ann"] * count,
        "event_time": [NOW_US] * count,
    }
    return columns | more


def test_events_that_are_applied_count_in_lists(shop: Path, tmp_path: Path) -> None:
    """Once each, and also after the file is opened again; a bad event fails alone."""
    events = {
        "transaction_id": ["e1", "e2", "e3", ""],
        "user_id": ["ann"] * 4,
        "event_time": [NOW_US - 3_000_000, NOW_US - 2_000_000, NOW_US, NOW_US],
        "item": ["i3", "i0", "i2", "i1"],
        "action": ["view", "purchase", "beg", "view"],
    }
    store = f"memory:{tmp_path / 'events.store'}"
    with Engine.open(shop, product="shop", store=store) as engine:
        before = engine.rank(requests(1))
        found = engine.apply(events)
        after = engine.rank(requests(1))
        assert engine.apply(events)["applied"].tolist() == [False] * 4
    assert found["applied"].tolist() == [True, True, True, False]
    assert found["error"].tolist() == [*[""] * 3, 'transaction_id: "": is empty']
    assert set(before["source"][0]) == {"popular"}
    assert set(after["source"][0]) <= {"personal", "similar"}
    assert "i0" in before["items"][0]
    assert "i0" not in after["items"][0]  # bought
    with Engine.open(shop, product="shop", store=store) as engine:
        assert_same(engine.rank(requests(1)), after)


def test_a_list_has_the_items_that_the_call_allows(shop: Path) -> None:
    """Neither those out of stock nor excluded ones; as many as it asks for."""
    rows = requests(40, exclude=["i0", "i0|i2"] * 20)
    with Engine.open(shop, product="shop") as engine:
        usual = engine.rank(rows)
        found = engine.rank(rows, count=2, out_of_stock=["i1", b"i5", "none"])
        again = engine.rank(rows)
    assert usual["items"].tolist()[:2] == [
        ["i1", "i2", "i3", "i4"],
        ["i1", "i3", "i4", "i5"],
    ]
    assert found["items"].tolist() == [["i2", "i3"], ["i3", "i4"]] * 20
    assert found["scores"].shape == (40, 2)
    assert_same(again, usual)


def test_the_stock_is_that_of_the_redis(shop: Path, tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as server:
        server.sadd("tollgate:shop:list:out_of_stock", "i0")
        with Engine.open(shop, product="shop", store=store.url) as engine:
            assert "i0" not in engine.rank(requests(1))["items"][0]
            allowed = engine.rank(requests(1), out_of_stock=[])
            assert "i0" in allowed["items"][0]


def test_the_record_of_a_local_list_repeats_it(shop: Path, tmp_path: Path) -> None:
    """A dry run and a bad row have none."""
    with Engine.open(shop, product="shop", journal=tmp_path) as engine:
        engine.rank(requests(1, request_id=["dry"]), dry_run=True)
        found = engine.rank(requests(3, user_id=["ann", "", "ben"]), count=3)
    spool = JournalSpool(tmp_path / "shop", product="shop")
    chunks: list[bytes] = []

    def take(some: Sequence[bytes]) -> int:
        chunks.extend(some)
        return len(some)

    spool.drain(take, until_s=time.monotonic() + 60)
    (chunk,) = map(decode_chunk, chunks)
    assert chunk.transaction_id == [b"r0", b"r2"]
    catalogue = small_catalogue()
    policy = load_policy_of(
        shop / "shop_ranking/1", load_spec(shop / "shop_candidates/1" / SPEC_FILE)
    )
    assert policy.ranking is not None
    bound = bind_rules(policy.ranking, catalogue)
    for row, details in zip((0, 2), chunk.details, strict=True):
        record = decode_ranking(details)
        again = rank_row(replay_input(record, items=catalogue.size), bound)
        ids = [catalogue.item_ids[at].decode() for at in again.items.tolist()]
        assert ids == found["items"][row].tolist()
        assert again.scores.tobytes() == found["scores"][row].tobytes()


def test_a_call_of_the_wrong_kind_is_refused(shop: Path) -> None:
    """The error names the method that fits, the number, or the column."""
    with Engine.open(shop, product="shop") as engine:
        with pytest.raises(InputError, match="shop: ranks items: use rank"):
            engine.decide(requests(1))
        for count in (0, 51, True):
            with pytest.raises(InputError, match=f"count: {count}: is no whole number"):
                engine.rank(requests(1), count=count)
        with pytest.raises(InputError, match="columns: item: is unknown"):
            engine.rank(requests(1, item=["i1"]))
        with pytest.raises(InputError, match="columns: user_id: is missing"):
            engine.apply({"transaction_id": ["e"], "event_time": [NOW_US]})
    with (
        Engine.open(REPOSITORY, product="fraud") as engine,
        pytest.raises(InputError, match="fraud: does not rank: use decide"),
    ):
        engine.rank(purchases(1))


def test_purchases_that_are_applied_count_in_decisions() -> None:
    """As if they had been decided: the next row sees the same windows."""
    earlier, later = purchases(30), purchases(1) | {"transaction_id": ["later"]}
    with Engine.open(REPOSITORY, product="fraud") as engine:
        engine.decide(earlier)
        wanted = engine.decide(later)
    with Engine.open(REPOSITORY, product="fraud") as engine:
        assert engine.apply(earlier)["applied"].all()
        assert_same(engine.decide(later), wanted)


def test_no_rows_give_empty_columns() -> None:
    """The outputs are there."""
    with Engine.open(REPOSITORY, product="fraud") as engine:
        found = engine.decide({name: [] for name in purchases(1)})
    assert sorted(found) == sorted(
        ("decision", "score", "reason_codes", "degraded", "error", "release")
    )
    assert all(len(column) == 0 for column in found.values())


@pytest.mark.parametrize(
    ("name", "column", "problem"),
    [
        ("terminal_id", None, "terminal_id: is missing"),
        ("terminal", ["a", "b"], "terminal: is unknown; did you mean terminal_id"),
        ("amount", [1.0], "amount: has 1 rows, but event_time has 2"),
        ("amount", ["much", 1.0], "amount: could not convert .* 'much'"),
        ("event_time", [1.5, 2.0], "event_time: .*1.5.* is not an integer"),
        ("amount", [10**400, 1.0], "amount: .* too large"),
        ("customer_id", ["a", 7], "customer_id: 7 is neither text nor bytes"),
        ("customer_id", ["a", "\ud800"], "customer_id: .* surrogates not allowed"),
    ],
)
def test_a_wrong_column_is_named(
    name: str, column: list[object] | None, problem: str
) -> None:
    """It is wrong in the call, not in a row."""
    rows = purchases(2)
    rows.pop(name, None)
    if column is not None:
        rows[name] = column
    with (
        Engine.open(REPOSITORY, product="fraud") as engine,
        pytest.raises(InputError, match=problem),
    ):
        engine.decide(rows)


def test_importing_the_package_loads_nothing() -> None:
    """The engine and NumPy are imported when the name is used."""
    code = (
        "import sys, tollgate; few = set(sys.modules); tollgate.Engine; "
        "print('numpy' in few, 'tollgate.server' in few, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True"]


def test_the_examples_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """They run one after the other, like the cells of a notebook."""
    page = (REPOSITORY.parent / "docs/local.md").read_text()
    cells = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    assert len(cells) == page.count("```python")
    (tmp_path / "model_repository").symlink_to(REPOSITORY)
    shop = tmp_path / "shop_repository"
    release_shop(shop, write_shop(shop))
    code = "print('---')\n".join(source for source, _ in cells)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=checkout_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "---\n".join(shown for _, shown in cells)

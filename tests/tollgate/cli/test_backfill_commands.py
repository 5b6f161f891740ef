"""`materialize`, `rebuild` and `repair drain` as a person types them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import redis
from typer.testing import CliRunner

from tests.support.products.committed_product import copy_product
from tests.support.store.hot_entities import (
    Served,
    busy_history,
    busy_spec,
    known_at,
    serve_after,
    with_hop,
)
from tollgate.backfill.materialize import MaterializeCounts
from tollgate.cli.app import app
from tollgate.cli.operations.store_commands import _counts_text
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.repair.event_spool import PurchaseSpool
from tollgate.repair.spool_segments import locked
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

OpenStore = Callable[..., RedisStore]
CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture
def history_file(tmp_path: Path, simulated: pl.DataFrame) -> Path:
    """A history as a file."""
    path = tmp_path / "history.parquet"
    simulated.write_parquet(path)
    return path


def run(*arguments: str) -> tuple[int, str]:
    """Run a command in the checkout; exit status and output."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, " ".join(done.output.split()) + repr(done.exception)


def spooled(folder: Path, spec_path: Path) -> None:
    """Leave one purchase in a spool."""
    spool = PurchaseSpool(folder, spec_path)
    assert spool.append(
        Purchases(
            transaction_id=[b"late"],
            entity_id=[[b"c"], [b"t"]],
            event_time_us=np.array([1_700_000_000_000_000]),
            cents=np.array([100]),
        )
    )
    spool.close()


def test_materialize_says_what_it_did_and_goes_on(
    history_file: Path,
    store_url: str,
    spec_path: Path,
    spec: FeatureSpec,
    redis_client: redis.Redis,
) -> None:
    """Twice is once; into other values with what serves, too."""
    to = ["--spec", str(spec_path), "--store-url", store_url]
    status, text = run("materialize", str(history_file), *to)
    assert status == 0, text
    assert " 0 done before" in text
    keys = len(redis_client.keys(f"tollgate:fraud:{spec.state_hash:016x}:*"))
    assert keys == 30 + 24
    status, text = run("materialize", str(history_file), *to)
    assert " 0 sent" in text
    new = history_file.with_name("features.yaml")
    new.write_text(spec_path.read_text() + "\ngeneration: 1\n")
    to[1] = str(new)
    status, text = run("materialize", "--copy-from", str(spec_path), *to)
    assert status == 0, text
    assert f"copied {keys} values" in text
    assert len(redis_client.keys(b"tollgate:fraud:????????????????:*")) == 2 * keys


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process writes, so none has to be waited for."""
    monkeypatch.setattr("tollgate.backfill.copying.WRITERS_READ_S", 0)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with the committed product."""
    return copy_product(tmp_path / "models")


@pytest.mark.usefixtures("no_wait")
def test_migrate_fills_the_next_state_and_deletes_the_last_one(
    history_file: Path,
    models: Path,
    tmp_path: Path,
    store_url: str,
    spec_path: Path,
    spec: FeatureSpec,
    redis_client: redis.Redis,
) -> None:
    """Start, again, status, end; every line names the state."""
    to = ["--store-url", store_url, "--repository", str(models)]
    status, text = run("materialize", str(history_file), *to)
    assert status == 0, text
    tiled = with_hop(spec_path, tmp_path, "1h")
    old, new = f"{spec.state_hash:016x}", f"{tiled.state_hash:016x}"
    status, text = run("migrate", "status", *to)
    assert text == f"{old} alone is written, and serves" + "None"
    start = ["migrate", "start", "--spec", str(tmp_path / "features.yaml"), *to]
    status, text = run(*start)
    assert status == 0, text
    assert f"dual writes to {old} (served) and {new}, for 30 days" in text
    assert f"copied {30 + 24} values" in text
    assert f"{new} is complete: activate its release" in text
    values = {key: redis_client.get(key) for key in redis_client.keys("*:customer:*")}
    status, text = run(*start)
    assert " 0 of them new" in text
    assert values == {key: redis_client.get(key) for key in values}
    status, text = run("migrate", "status", *to)
    assert text.count("complete since") == 2
    assert text.index("serves") < text.index(new)
    status, text = run("migrate", "end", *to)
    assert f"{new}: {30 + 24} values deleted {old} alone is written" in text
    assert redis_client.keys(f"tollgate:fraud:{new}*") == []
    assert len(redis_client.keys(f"tollgate:fraud:{old}:*")) == 30 + 24
    assert redis_client.get("tollgate:fraud:written-states") is None
    status, text = run("migrate", "end", *to, "--json")
    assert f'"served": "{old}", "deleted": {{}}' in text


@pytest.mark.usefixtures("no_wait")
def test_migrate_needs_a_history_where_the_old_values_lack_data(
    history_file: Path,
    models: Path,
    tmp_path: Path,
    store_url: str,
    spec_path: Path,
    redis_client: redis.Redis,
) -> None:
    """A new column cannot be copied; requests must carry it, or nothing is written."""
    to = ["--store-url", store_url, "--repository", str(models)]
    text = spec_path.read_text()
    count = "aggregate: count, window: 30d, default: 60"
    assert count in text
    path = tmp_path / "features.yaml"
    distinct = count.replace("count", "distinct, of: terminal_id")
    path.write_text(text.replace(count, distinct))
    start = ["migrate", "start", "--spec", str(path), *to]
    status, said = run(*start)
    assert status != 0
    assert "customer needs terminal_id; the old values do not have it" in said
    assert redis_client.dbsize() == 0
    status, said = run(*start, str(history_file))
    assert status == 0, said
    assert "not copied: copy: customer needs terminal_id" in said
    assert "the history must reach up to 20" in said
    path.write_text(text.replace("terminal_id", "device_id"))
    status, said = run(*start, str(history_file))
    assert "migrate: the served release has no device_id, or another form" in said
    path.write_text(text)
    status, said = run(*start)
    assert "both are the same state: no values change" in said


@pytest.mark.parametrize("hop", ["0", "1h"])
def test_replay_needs_a_store_without_the_history(
    history_file: Path, tmp_path: Path, store_url: str, spec_path: Path, hop: str
) -> None:
    """Windows of purchases that are applied again are no proof of anything."""
    with_hop(spec_path, tmp_path, hop)
    to = ["--spec", str(tmp_path / "features.yaml"), "--store-url", store_url]
    days = ["--from", "2018-05-25", "--until", "2018-05-30"]
    status, text = run("features", "replay", str(history_file), *days, *to)
    assert status == 0, text
    assert " 0 differ from offline" in text
    status, text = run("features", "replay", str(history_file), *days, *to)
    assert status != 0
    assert "store: has these purchases, or newer ones, already: name an empty" in text


def test_files_of_values_with_tiles_are_one_history(
    tmp_path: Path, store_url: str, redis_client: redis.Redis, open_store: OpenStore
) -> None:
    """Labels of the first file may be known after purchases of the second one."""
    spec = busy_spec(tmp_path)
    history = busy_history(spec, count=6_000, days=12)
    until_us = int(history.event_time_us[4_999])
    past = known_at(history, until_us)
    files = []
    for number, rows in enumerate(np.split(np.arange(5_000), 5)):
        part = past.take(rows)
        names = {
            name: [one.decode() for one in column]
            for name, column in part.entity_id.items()
        }
        items = part.fields["items"]
        files.append(str(tmp_path / f"{number}.parquet"))
        pl.DataFrame(
            {
                "transaction_id": [one.decode() for one in part.transaction_id],
                **names,
                "event_time": part.event_time_us,
                "amount": part.cents / 100,
                "items": np.where(items == MISSING, np.nan, items / 100),
                "label": part.label,
                "label_time": part.label_time_us,
            }
        ).write_parquet(files[-1])
    path = str(tmp_path / "features.yaml")
    status, text = run(
        *("materialize", *reversed(files), "--spec", path, "--store-url", store_url)
    )
    assert status == 0, text
    served = serve_after(spec, history, open_store(store_url), after_us=until_us)
    assert served == Served(rows=1_000, different=0, marked=0)


TABLES = """
tables:
  limits: {entity: customer, refresh: 1h}
"""
LIMIT = "  - {name: limit, table: limits, column: limit, default: 0.5}"


def test_tables_are_loaded_built_and_replayed(
    history_file: Path, tmp_path: Path, store_url: str, spec_path: Path
) -> None:
    """One file for training and serving: no vector differs in a bit."""
    shop = tmp_path / "features.yaml"
    shop.write_text(f"{spec_path.read_text().rstrip()}\n{LIMIT}\n{TABLES}")
    customers = pl.read_parquet(history_file)["customer_id"].unique().sort()
    limits = tmp_path / "limits.csv"
    pl.DataFrame(
        {"customer_id": customers[::2], "limit": np.arange(len(customers[::2])) / 7}
    ).write_csv(limits)
    table, spec = ["--table", f"limits={limits}"], ["--spec", str(shop)]
    status, text = run("materialize", *table, *spec, "--store-url", store_url)
    assert status == 0, text
    assert "limits.csv: 15 rows of 15 ids, 0 done before, 15 written" in text
    out = tmp_path / "vectors.parquet"
    status, text = run("features", "build", str(history_file), str(out), *spec, *table)
    assert status == 0, text
    taken = pl.read_parquet(out)
    expected = {one: at / 7 for at, one in enumerate(customers[::2].to_list())}
    assert taken["limit"].to_list() == [
        expected.get(one, 0.5) for one in taken["customer_id"].to_list()
    ]
    days = [str(taken["event_time"].dt.date().max() - timedelta(3)), "2100-01-01"]
    status, text = run(
        *("features", "replay", str(history_file), "--from", days[0]),
        *("--until", days[1], *spec, *table),
    )
    assert status == 0, text
    assert " 0 differ from offline" in text


def test_a_table_that_cannot_be_used_is_refused(
    history_file: Path, store_url: str, spec_path: Path
) -> None:
    """One line, status 2, and nothing written."""
    to = ["--spec", str(spec_path), "--store-url", store_url]
    for given, words in (
        ("limits", "--table: 'limits' is not NAME=FILE"),
        (f"limits={history_file}", "table: limits: is no table"),
    ):
        done = CliRunner().invoke(app, ["materialize", "--table", given, *to])
        assert words in str(done.exception)
        assert getattr(done.exception, "exit_status", None) == 2


def test_what_could_not_be_meant_is_refused_before_anything_is_written(
    history_file: Path,
    store_url: str,
    spec_path: Path,
    tmp_path: Path,
    redis_client: redis.Redis,
) -> None:
    """Nothing to do, a copy onto itself, a file and a spool that are not there."""
    to = ["--spec", str(spec_path), "--store-url", store_url]
    itself = ["--copy-from", str(spec_path)]
    gone = str(tmp_path / "gone.parquet")
    for command, words in (
        (["materialize", *to], "name a history, a --table or --copy-from"),
        (["materialize", str(history_file), *itself, *to], "both are the same state"),
        (["materialize", gone, *to], "gone.parquet: cannot be read: No such"),
        (["repair", "drain", "--spool", gone, *to[2:]], "is no folder"),
    ):
        done = CliRunner().invoke(app, command)
        assert words in str(done.exception)
        assert getattr(done.exception, "exit_status", None) == 2
    assert redis_client.dbsize() == 0


def test_rebuild_takes_history_and_spool(
    history_file: Path,
    store_url: str,
    spec_path: Path,
    tmp_path: Path,
    redis_client: redis.Redis,
) -> None:
    """An empty store has both in the end, and the spool nothing."""
    spooled(tmp_path / "spool", spec_path)
    repository = ["--repository", str(CHECKOUT / "model_repository")]
    where = ["--state", str(tmp_path), "--store-url", store_url]
    status, text = run("rebuild", str(history_file), *repository, *where)
    assert status == 0, text
    assert "spool: applied 1, had already 0" in text
    assert redis_client.keys(b"*:customer:c")
    assert redis_client.keys(b"*:customer:C*")


def test_drain_of_a_folder_that_is_drained_says_so(
    tmp_path: Path, store_url: str, spec_path: Path
) -> None:
    """One purchase, once; and one line when somebody else is at it."""
    spooled(tmp_path, spec_path)
    command = ("repair", "drain", "--spool", str(tmp_path), "--store-url", store_url)
    with locked(tmp_path / "drain.lock", flags=0o102) as lock:
        assert lock is not None
        status, text = run(*command)
        assert status == 1
        assert "is being drained" in text
    status, text = run(*command)
    assert status == 0, text
    assert "spool: applied 1" in text


def test_what_the_store_does_not_keep_is_said() -> None:
    """How many ids, and how many of their purchases; nothing where there are none."""
    done = MaterializeCounts(history=3_000, sent=3_000, full=2, over_cap=1_200)
    words = "2 ids have more than their entity's cap: 1,200 of their purchases are not "
    assert _counts_text(done, "purchases").endswith(
        f"; {words}stored (WINDOW_OVERFLOW)"
    )
    few = MaterializeCounts(history=3, sent=3)
    assert "cap" not in _counts_text(few, "purchases")

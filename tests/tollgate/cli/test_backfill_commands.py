"""`materialize`, `rebuild` and `repair drain` as a person types them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import redis
from typer.testing import CliRunner

from tollgate.cli.app import app
from tollgate.features.spec import FeatureSpec
from tollgate.repair.segments import locked
from tollgate.repair.spool import PurchaseSpool
from tollgate.store.events import Purchases

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

"""The product of this repository, served as it is cloned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import redis

from tollgate.server import control
from tollgate.server.embedded import serve

REPOSITORY = Path(__file__).parents[3] / "model_repository"


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.slow
def test_the_repository_is_ready_and_nothing_is_written(tmp_path: Path) -> None:
    """Probes of 1, 8 and 32 rows leave no key in the store and no file behind."""
    repository = tmp_path / "models"
    leftovers = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY, repository, ignore=leftovers)
    before = _files(repository)
    with serve(repository, state=tmp_path / "state") as product:
        assert product.redis is not None
        assert product.release
        with redis.Redis.from_url(product.store_url) as client:
            assert client.dbsize() == 0
        counters = control.statistics(product.triton, "fraud")["fraud"]
        assert counters["inference_count"] == str(1 + 8 + 32)
    assert not product.triton.alive()
    assert not product.redis.alive()
    assert _files(repository) == before

"""The product of this repository, served as it is cloned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import redis

from tollgate.errors import RepositoryError, ServerError
from tollgate.server.serving.embedded import serve
from tollgate.server.triton import control

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
        assert product.serving["fraud"].release
        with redis.Redis.from_url(product.store_url) as client:
            assert client.dbsize() == 0
        counters = control.statistics(product.triton, "fraud")["fraud"]
        assert counters["inference_count"] == str(1 + 8 + 32)
    assert not product.triton.alive()
    assert not product.redis.alive()
    assert _files(repository) == before


@pytest.mark.slow
def test_what_was_served_before_is_served_when_the_release_is_broken(
    tmp_path: Path,
) -> None:
    """From the server's own copies, proven again; without these it is refused."""
    repository = tmp_path / "models"
    leftovers = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY, repository, ignore=leftovers)
    state = tmp_path / "state"
    with serve(repository, state=state):
        pass
    (repository / "fraud/release.json").write_text("{")
    with serve(repository, state=state, recall=True) as product:
        assert product.serving["fraud"].release == "fraud-1"
    with pytest.raises(RepositoryError), serve(repository, state=state):
        pass
    (state / "served/fraud_model/1/model.onnx").write_bytes(b"damaged")
    with (
        pytest.raises(ServerError, match="fraud_model: slot 1 is damaged"),
        serve(repository, state=state, recall=True),
    ):
        pass

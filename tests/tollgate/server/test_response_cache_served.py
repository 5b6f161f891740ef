"""Triton's own response cache before a model, for those who ask for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

from tollgate.repository.lint.product_rules import check
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.supervisor.health_probe import HealthProbe
from tollgate.supervisor.stubs import find_stubs
from tollgate_client import Client

CONFIG = "cached"
_COUNTER = re.compile(r'^nv_(\w+)\{model="fraud_model"[^}]*\} (\S+)$', re.MULTILINE)
REPOSITORY = Path(__file__).parents[3] / "model_repository"
PURCHASE = {
    "transaction_id": ["p-1"],
    "customer_id": ["alice"],
    "terminal_id": ["corner-shop"],
    "amount": [12.34],
    "event_time": [1_768_464_900_000_000],
}


def with_cache(repository: Path) -> None:
    """Write a named configuration of the model that uses the response cache."""
    model = repository / "fraud_model"
    (model / "configs").mkdir(exist_ok=True)
    text = (model / "config.pbtxt").read_text() + "response_cache { enable: true }\n"
    (model / "configs" / f"{CONFIG}.pbtxt").write_text(text)


def found(server: Embedded) -> tuple[float, float]:
    """Read how many requests the model's cache answered, and how many not."""
    with urlopen(server.metrics_url, timeout=10) as page:
        counters = dict(_COUNTER.findall(page.read().decode()))
    names = ("cache_num_hits_per_model", "cache_num_misses_per_model")
    hits, misses = (float(counters.get(name, 0)) for name in names)
    return hits, misses


def asked_three_times(
    repository: Path, state: Path, *, cache_mb: int
) -> tuple[float, float, list[float]]:
    """Ask dry for one purchase three times; hits, misses and scores."""
    with serve(
        repository, state=state, model_config_name=CONFIG, cache_mb=cache_mb
    ) as server:
        hits, misses = found(server)  # of the probes, before
        with Client(server.grpc_url, timeout_s=10) as client:
            scores = [
                float(client.decide(PURCHASE, dry_run=True).score[0]) for _ in range(3)
            ]
        after = found(server)
    return after[0] - hits, after[1] - misses, scores


@pytest.mark.slow
def test_a_repeated_row_is_answered_by_the_cache_as_by_the_model(
    tmp_path: Path,
) -> None:
    """One is run, two are found, all score alike; without memory none is found."""
    repository = tmp_path / "repository"
    shutil.copytree(REPOSITORY, repository)
    with_cache(repository)
    assert (
        list(check(RepositorySnapshot(repository, config_name=CONFIG), product="fraud"))
        == []
    )
    hits, misses, cached = asked_three_times(repository, tmp_path / "a", cache_mb=16)
    assert (hits, misses) == (2, 1)
    hits, misses, plain = asked_three_times(repository, tmp_path / "b", cache_mb=0)
    assert (hits, misses) == (0, 0)
    assert cached == plain


@pytest.mark.slow
def test_a_heartbeat_is_no_request_that_the_cache_knows(tmp_path: Path) -> None:
    """A model that hangs is noticed, though the cache has answers from before."""
    repository = tmp_path / "repository"
    shutil.copytree(REPOSITORY, repository)
    with_cache(repository)
    with serve(
        repository, state=tmp_path / "a", model_config_name=CONFIG, cache_mb=16
    ) as server:
        hits, _ = found(server)
        health_probe = HealthProbe(server.triton, "fraud", timeout_s=2.0)
        for _ in range(5):
            health_probe.send()
            assert health_probe.ready, health_probe.problem
        assert found(server)[0] == hits
        (stub,) = (
            one
            for one in find_stubs(server.triton.pid)
            if one.step.model == "fraud_model"
        )
        os.kill(stub.pid, signal.SIGSTOP)
        try:
            health_probe.send()
        finally:
            os.kill(stub.pid, signal.SIGCONT)
        assert health_probe.failures == 1

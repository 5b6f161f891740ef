"""The supervisor collects its metrics at each scrape."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tollgate.supervisor.recycling import Recycling
from tollgate.supervisor.stubs import Step, Stub
from tollgate.supervisor.supervisor import Supervisor
from tollgate.supervisor.supervisor_metrics import (
    SupervisorMetrics,
    read_processes,
    trained_log_odds,
)


def artifact(folder: Path, scores: list[float], levels: list[float]) -> Path:
    """Write the part of an artifact.json that says how scores lay."""
    path = folder / "artifact.json"
    training = {"quantiles": levels, "score": {"quantiles": scores}}
    path.write_text(json.dumps({"training": training}))
    return path


def test_trained_scores_are_those_of_a_sample_with_these_quantiles(
    tmp_path: Path,
) -> None:
    """Against 400,000 draws between the quantiles, which lie evenly in log-odds."""
    levels = [0.0, 0.1, 0.5, 0.9, 1.0]
    scores = [0.001, 0.01, 0.05, 0.4, 0.99]
    found = trained_log_odds(artifact(tmp_path, scores, levels))
    odds = np.log(np.array(scores) / (1 - np.array(scores)))
    drawn = np.interp(np.random.default_rng(3).random(400_000), levels, odds)
    least = np.log(1e-6 / (1 - 1e-6))
    assert found is not None
    assert found[0] == pytest.approx(drawn.mean() - least, abs=0.02)
    assert found[1] == pytest.approx(drawn.std(), abs=0.02)


@pytest.mark.parametrize(
    "text",
    ["{}", "not JSON", '{"training": null}', '{"training": {"quantiles": [0, 1]}}'],
)
def test_a_model_of_which_nothing_is_known_has_no_trained_score(
    tmp_path: Path, text: str
) -> None:
    """An artifact without a distribution costs the scrape nothing."""
    path = tmp_path / "artifact.json"
    path.write_text(text)
    assert trained_log_odds(path) is None


def test_one_score_for_all_has_no_deviation(tmp_path: Path) -> None:
    """Nothing can be measured in units of 0."""
    path = artifact(tmp_path, [0.2, 0.2, 0.2], [0.0, 0.5, 1.0])
    assert trained_log_odds(path) is None


def test_a_process_is_measured_as_the_kernel_counts_it() -> None:
    """This process, which just worked for a while; one that is gone is left out."""
    began_s = time.process_time()
    while time.process_time() - began_s < 0.05:
        sum(range(1000))
    pids = [(os.getpid(), "me", "", ""), (2**22 + 1, "gone", "", "")]
    (found,) = read_processes(iter(pids))
    assert found.process == "me"
    assert found.cpu_s == pytest.approx(sum(os.times()[:2]), abs=0.1)
    assert found.resident_bytes > 1 << 20
    assert found.threads >= 1


def test_every_scrape_is_whole_however_many_scrape_at_once() -> None:
    """Prometheus comes in pairs; none sees what the other one's scrape begins."""
    own = SimpleNamespace(pid=os.getpid())
    served: Any = SimpleNamespace(triton=own, redis=None)
    supervisor = Supervisor(
        served, products=[], recycling=Recycling(), fault=lambda _: None
    )
    supervisor.stubs = [
        Stub(os.getpid(), Step("m", 1, f"m_{number}"), False, 1.0, 1)
        for number in range(20)
    ]
    metrics = SupervisorMetrics()

    def steps(_: int) -> int:
        return metrics.page(supervisor).count(b"\ntollgate_step_resident_bytes{")

    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # as on a machine where everything takes turns
    try:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(steps, range(800))) == {20}
    finally:
        sys.setswitchinterval(usual_s)

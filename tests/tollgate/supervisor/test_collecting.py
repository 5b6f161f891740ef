"""What the supervisor finds out at a scrape."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from tollgate.supervisor.collecting import trained_log_odds
from tollgate.supervisor.processes import look


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


def test_a_process_is_told_as_the_kernel_counts_it() -> None:
    """This process, which just worked for a while; one that is gone is left out."""
    began_s = time.process_time()
    while time.process_time() - began_s < 0.05:
        sum(range(1000))
    pids = [(os.getpid(), "me", "", ""), (2**22 + 1, "gone", "", "")]
    (found,) = look(iter(pids))
    assert found.process == "me"
    assert found.cpu_s == pytest.approx(sum(os.times()[:2]), abs=0.1)
    assert found.resident_bytes > 1 << 20
    assert found.threads >= 1

"""Each house rule of a config.pbtxt is enforced, by file and key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ENSEMBLE = "fraud/config.pbtxt"
FEATURES = "fraud_features/config.pbtxt"
MODEL = "fraud_model/config.pbtxt"
DECISION = "fraud_decision/config.pbtxt"
BATCHING = "dynamic_batching {"
DELAY = "dynamic_batching.max_queue_delay_microseconds"
POLICY = "dynamic_batching.default_queue_policy"

Edit = Callable[[str, str, str], None]
Lines = Callable[[], list[str]]


# name: (file, text, text instead, file of the finding, start of "where: problem")
BREAKS = {
    "batch_size": (
        MODEL,
        "max_batch_size: 32",
        "max_batch_size: 16",
        MODEL,
        "max_batch_size: 16 must be 32",
    ),
    "queue_timeout": (
        FEATURES,
        BATCHING,
        f"{BATCHING} default_queue_policy {{ default_timeout_microseconds: 50000 }}",
        FEATURES,
        f"{POLICY}.default_timeout_microseconds: queue timeouts can leave a model",
    ),
    "timeout_override": (
        MODEL,
        BATCHING,
        f"{BATCHING} default_queue_policy {{ allow_timeout_override: true }}",
        MODEL,
        f"{POLICY}.allow_timeout_override: queue timeouts can leave a model",
    ),
    "timeout_action": (
        DECISION,
        BATCHING,
        f"{BATCHING} default_queue_policy {{ timeout_action: DELAY }}",
        DECISION,
        f"{POLICY}.timeout_action: queue timeouts can leave a model",
    ),
    "bounded_queue": (
        DECISION,
        BATCHING,
        f"{BATCHING} default_queue_policy {{ max_queue_size: 512 }}",
        DECISION,
        f"{POLICY}.max_queue_size: switches off prefetching",
    ),
    "priorities": (
        MODEL,
        BATCHING,
        f"{BATCHING} priority_levels: 2 default_priority_level: 1",
        MODEL,
        "dynamic_batching.priority_levels: switches off prefetching",
    ),
    "second_delay": (
        MODEL,
        "dynamic_batching {",
        "dynamic_batching { max_queue_delay_microseconds: 501 } #",
        MODEL,
        f"{DELAY}: 501 must be at most 500: fraud_features has 4500",
    ),
    "latest": (
        FEATURES,
        "max_batch_size",
        "version_policy { latest { num_versions: 1 } }\nmax_batch_size",
        FEATURES,
        'version_policy: "latest" unloads or mixes versions',
    ),
    "all": (
        MODEL,
        "max_batch_size",
        "version_policy { all {} }\nmax_batch_size",
        MODEL,
        'version_policy: "all" unloads or mixes versions',
    ),
    "pin_in_the_ensemble": (
        ENSEMBLE,
        "model_version: -1",
        "model_version: 7",
        ENSEMBLE,
        "fraud_features: model_version: 7 must be -1",
    ),
    "warm_up_of_a_python_step": (
        DECISION,
        "instance_group",
        'model_warmup [ { name: "1" batch_size: 1 } ]\ninstance_group',
        DECISION,
        "model_warmup: runs a Python step on made-up requests",
    ),
    "cached_decisions": (
        ENSEMBLE,
        "max_batch_size: 32",
        "max_batch_size: 32\nresponse_cache { enable: true }",
        ENSEMBLE,
        "response_cache: would answer with decisions on old features",
    ),
    "cached_features": (
        FEATURES,
        "max_batch_size: 32",
        "max_batch_size: 32\nresponse_cache { enable: true }",
        FEATURES,
        "response_cache: would answer with old features",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_named(
    repository: Path, lines: Lines, edit: Edit, name: str
) -> None:
    """Each broken rule gives a one-line finding with its file and key."""
    file, old, new, found_in, start = BREAKS[name]
    edit(file, old, new)
    found = lines()
    assert any(line.startswith(f"{repository / found_in}: {start}") for line in found)
    assert all("\n" not in line for line in found)


def test_model_step_without_batching_is_found(repository: Path, lines: Lines) -> None:
    """Without dynamic_batching each request would run alone."""
    path = repository / MODEL
    text = path.read_text()
    start = text.index("dynamic_batching {")
    end = text.index("\n", start)
    path.write_text(text[:start] + text[end:])
    found = lines()
    assert any(
        line.startswith(f"{path}: dynamic_batching: is missing") for line in found
    )

"""Tests of GPU instances on a machine without GPU."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tollgate.server.triton.placement import has_gpu, placed

ON_GPU = json.dumps(
    {
        "name": "m",
        "instance_group": [{"count": 2, "kind": "KIND_GPU", "gpus": [0]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 5000},
    }
)


def test_gpu_instances_move_to_the_cpu_in_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Triton would refuse them; count and everything else stay, and it is said."""
    with caplog.at_level(logging.WARNING):
        config = json.loads(placed(ON_GPU, gpu=False))
    assert config["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
    assert int(config["dynamic_batching"]["max_queue_delay_microseconds"]) == 5000
    assert "KIND_GPU; this machine has no GPU, so it runs on the CPU" in caplog.text


def test_a_machine_with_gpu_gets_what_was_asked() -> None:
    """Nothing is changed where the GPU is there, or none was asked for."""
    assert placed(ON_GPU, gpu=True) is ON_GPU
    on_cpu = ON_GPU.replace("KIND_GPU", "KIND_CPU")
    assert placed(on_cpu, gpu=False) is on_cpu


def test_a_gpu_is_a_numbered_device(tmp_path: Path) -> None:
    """The control device alone is no GPU."""
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpu(tmp_path)

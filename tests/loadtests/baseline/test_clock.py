"""Tests of the time that requests spent in layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loadtests.baseline.clock import LayerClock, read_layers


def test_all_processes_of_a_service_are_added_up(tmp_path: Path) -> None:
    """Requests, then ns per layer; nothing yet is zero."""
    assert read_layers(tmp_path) == (0, 0, 0, 0, 0)
    clock = LayerClock(tmp_path)
    clock.add(100, 110, 130, 160, 200)
    clock.add(0, 1, 1, 1, 1)
    other = (
        "import sys; from pathlib import Path; "
        "from loadtests.baseline.clock import LayerClock; "
        "LayerClock(Path(sys.argv[1])).add(0, 1000, 1000, 1000, 5000)"
    )
    subprocess.run([sys.executable, "-c", other, str(tmp_path)], check=True)
    assert read_layers(tmp_path) == (3, 1011, 20, 30, 4040)

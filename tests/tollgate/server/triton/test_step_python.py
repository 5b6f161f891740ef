"""The Python environment of the steps."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tollgate.server.triton.step_python import build_step_python

_SHOW = """
import json, os, sys
print(json.dumps([sys.dont_write_bytecode, "numpy" in sys.modules,
                  os.getpriority(os.PRIO_PROCESS, os.getpid())]))
"""


def test_a_step_starts_with_numpy_and_writes_no_bytecode(tmp_path: Path) -> None:
    """Numpy is there before Triton's module imports it, and no priority is lost."""
    python = build_step_python(tmp_path) / "python3"
    printed = subprocess.run(
        [python, "-c", _SHOW],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert printed.stderr == ""
    assert json.loads(printed.stdout) == [True, True, own]

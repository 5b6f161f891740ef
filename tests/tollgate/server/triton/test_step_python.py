"""The Python environment of the steps."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tollgate.server.triton.step_python import build_step_python

_LOWEST = 19  # the nice value of the lowest priority
_NUMPY = """
import os, site, threading
priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
"""


def printed(python: Path, code: str, **environment: str) -> Any:
    """Run code that prints JSON; a start that hangs fails."""
    ended = subprocess.run(
        [python, "-c", f"import json, os, sys\n{code}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], **environment},
    )
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def test_a_step_starts_with_numpy_and_writes_no_bytecode(tmp_path: Path) -> None:
    """Numpy's own import does not wait for the start, which would never end."""
    python = build_step_python(tmp_path) / "python3"
    code = "print(json.dumps([sys.dont_write_bytecode, 'numpy' in sys.modules]))"
    assert printed(python, code) == [True, True]


def test_numpy_is_imported_at_a_lower_priority(tmp_path: Path) -> None:
    """The thread that serves keeps its own; a numpy that imports `site` hangs none."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(_NUMPY)
    python = build_step_python(tmp_path) / "python3"
    code = """
import numpy
print(json.dumps([numpy.priority, os.getpriority(os.PRIO_PROCESS, os.getpid())]))
"""
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    found = printed(python, code, PYTHONPATH=str(tmp_path))
    assert found == [min(own + 5, _LOWEST), own]

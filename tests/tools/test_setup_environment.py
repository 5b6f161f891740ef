"""`make setup` lets pip compile packages, as it must on Python 3.13."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
# In place of pip, it builds a package whose makefile needs a built-in rule of make.
PYTHON = """\
#!/bin/sh
case "$*" in
  *"pip install"*) make -C package module.o ;;
esac
"""


def test_a_package_that_needs_built_in_rules_is_compiled(tmp_path: Path) -> None:
    """Flags of our Makefile, such as --no-builtin-rules, are not passed on."""
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    for part in (".", "clients/python", "converters", "tollgate/_compiled"):
        (tmp_path / part).mkdir(parents=True, exist_ok=True)
        (tmp_path / part / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "Makefile").write_text("all: module.o\n")
    (tmp_path / "package" / "module.c").write_text("int module;\n")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "setup"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "package" / "module.o").stat().st_size > 0

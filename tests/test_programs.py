"""Programs of the system: how tests get them, and what when one is absent."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent


def test_the_programs_that_tests_need_are_installed_and_told() -> None:
    """conftest, the script that installs, README and Makefile name the same ones."""
    text = (HOUSE / "tests" / "conftest.py").read_text()
    table = re.search(r"^PACKAGES = (\{.*?^\})", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    packages: dict[str, str] = ast.literal_eval(table[1])
    script = (HOUSE / "tools" / "install-programs.sh").read_text()
    listed = script.partition("; do")[0]
    pairs = dict(re.findall(r"([a-z0-9-]+)=([a-z0-9-]+)(?= )", listed))
    assert pairs == packages
    # A module is no program: conftest and the script look for its file.
    (module,) = re.findall(r'^NJS_PACKAGE = "(.*)"$', text, re.MULTILINE)
    assert f'MISSING="$MISSING {module}"' in script
    readme = (HOUSE / "README.md").read_text()
    assert "\nsh tools/install-programs.sh\n" in readme


def test_a_missing_program_of_the_system_is_named(tmp_path: Path) -> None:
    """It skips a test here and fails it in CI; a marker without names is a mistake."""
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(HOUSE / "tests" / "conftest.py", folder)
    (folder / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.system('h2load', 'promtool')\n"
        "def test_needs(): pass\n"
        "@pytest.mark.system\n"
        "def test_names_none(): pass\n"
        "@pytest.mark.system('vim')\n"
        "def test_names_another(): pass\n"
    )
    for ci, words in (
        ("", "SKIPPED [1]"),
        ("true", "ERROR tests/test_it.py::test_needs"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", "tests"],
            cwd=tmp_path,
            env={
                "PATH": str(tmp_path),
                "PYTHONPATH": str(HOUSE),
                "CI": ci,
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        shown = [line for line in done.splitlines() if line.startswith(words)]
        missing = (
            "no h2load, promtool on PATH: apt-get install nghttp2-client prometheus"
        )
        assert any(missing in line for line in shown), done
        assert done.count(": system(…) names one or more of") == 2, done

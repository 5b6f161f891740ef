"""
Renew constraints.txt: exact pins that hold for every Python the project supports.

Each Python is resolved by itself with uv; where all agree, one line serves them all.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PROJECTS = (
    "pyproject.toml",
    "clients/python/pyproject.toml",
    "converters/pyproject.toml",
)
EXTRAS = (
    *("server", "image", "load", "baseline", "edge"),
    *("stream", "testing", "fleet", "traces", "docs", "dev"),
)
HEAD = (
    "# Exact pins for Python 3.10 to 3.13 on Linux x86-64; `make lock` renews them.\n"
)
# Held back by hand, with the reason.
HOLD = (
    # The committed model was trained and converted with it.
    "xgboost-cpu==3.2.0",
    # The last one for Python 3.10: a site does not depend on the Python that builds it.
    "zensical==0.0.67",
    # nvidia-pytriton needs NumPy 1; newer ones need an ml-dtypes that refuses it there.
    "onnx==1.18.0 ; python_version >= '3.13'",
    "tritonclient==2.69.0 ; python_version >= '3.13'",
)


def main() -> int:
    """Write constraints.txt; the exit status."""
    checkout = Path(__file__).resolve().parent.parent
    if shutil.which("uv") is None:
        print("make lock: uv is not on PATH; pip install uv", file=sys.stderr)
        return 2
    pins: dict[str, dict[str, str]] = {}
    for python in PYTHONS:
        for line in _resolve(python, checkout).splitlines():
            name, _, version = line.partition("==")
            version = version.partition(";")[0].strip()
            pins.setdefault(name.strip(), {})[python] = version
    lines = [line for name in sorted(pins) for line in _lines(name, pins[name])]
    (checkout / "constraints.txt").write_text(HEAD + "\n".join(lines) + "\n")
    return 0


def _resolve(python: str, checkout: Path) -> str:
    """Ask uv for the newest versions that fit together; one `name==version` a line."""
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    # Build tools are each package's own affair.
    command += ["--no-emit-package", "setuptools"]
    command += ["--python-platform", "x86_64-manylinux_2_35"]
    command += ["--python-version", python, *extras]
    command += ["--constraint", "-", *PROJECTS]
    done = subprocess.run(
        command,
        cwd=checkout,
        input="\n".join(HOLD),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"make lock: uv found no versions that fit Python {python}")
    return done.stdout


def _lines(name: str, versions: dict[str, str]) -> list[str]:
    """Pin one package; a pin that a Python does not need does no harm there."""
    runs = [
        (version, min(run, key=PYTHONS.index))
        for version, run in groupby(versions, key=lambda python: versions[python])
    ]
    lines = []
    for position, (version, first) in enumerate(runs):
        marker = [f"python_version >= '{first}'"] if position else []
        if position + 1 < len(runs):
            marker.append(f"python_version < '{runs[position + 1][1]}'")
        condition = f" ; {' and '.join(marker)}" if marker else ""
        lines.append(f"{name}=={version}{condition}")
    return lines


if __name__ == "__main__":
    sys.exit(main())

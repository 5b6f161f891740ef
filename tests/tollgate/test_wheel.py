"""What is installed holds every file of the packages, not the Python alone."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = Path(__file__).resolve().parents[2]
SETUPTOOLS = tomllib.loads((HOUSE / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = ("tollgate", "converters", "clients", "loadtests")
MADE = (".pyc", ".md")  # bytecode, and papers about the code


def _left_out(package: str) -> list[str]:
    """Name the files of a package that no pattern of pyproject.toml takes along."""
    root = HOUSE / package
    patterns = SETUPTOOLS["package-data"].get(package, [])
    files = [file for file in root.rglob("*") if file.is_file()]
    return [
        str(file.relative_to(root))
        for file in files
        if file.suffix not in (".py", *MADE)
        and not any(
            fnmatchcase(str(file.relative_to(root)), pattern.replace("**/", "*"))
            for pattern in patterns
        )
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_installed_with_it(package: str) -> None:
    """Lua, C, headers and YAML lie beside the code that reads them, in a wheel too."""
    assert _left_out(package) == []


def test_every_package_is_in_the_wheel() -> None:
    """A new folder with code at the top of the tree is found, or the wheel lacks it."""
    with_code = {file.parent.name for file in HOUSE.glob("*/__init__.py")}
    taken = {
        pattern.rstrip("*") for pattern in SETUPTOOLS["packages"]["find"]["include"]
    }
    assert with_code <= taken == set(PACKAGES)

"""A copy of the product's repository that a test may break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.products.committed_product import copy_product
from tollgate.repository.lint.product_rules import check
from tollgate.repository.snapshot import RepositorySnapshot

Edit = Callable[[str, str, str], None]
Lines = Callable[[], list[str]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The fraud product of the committed model repository, copied."""
    return copy_product(tmp_path / "model_repository")


@pytest.fixture
def edit(repository: Path) -> Edit:
    """Replace a text, which must be there, in a file of the copy."""

    def replace(file: str, old: str, new: str) -> None:
        path = repository / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r} to break"
        path.write_text(text.replace(old, new, 1))

    return replace


@pytest.fixture
def lines(repository: Path) -> Lines:
    """Print what the linter finds in the copy."""
    return lambda: [
        str(finding)
        for finding in check(RepositorySnapshot(repository), product="fraud")
    ]

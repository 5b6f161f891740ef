"""Keys, and a bundle of the committed fraud product."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.edge.bundles import Keys, packed


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Make the keys of the release."""
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def bundle(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the committed fraud product."""
    return packed(keys, tmp_path_factory.mktemp("bundle"))

"""What tests with programs of the system share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tollgate.testing import TestServer

if TYPE_CHECKING:
    from gateways import Place

sys.path.insert(0, str(Path(__file__).parent))
# Certificates are made as for the tests of the store.
sys.path.insert(0, str(Path(__file__).parents[1] / "tollgate" / "store"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Certificates and keys of a gateway and its callers."""
    from gateways import make_place

    return make_place(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def upstream() -> Iterator[TestServer]:
    """A server by script, behind gateways."""
    with TestServer() as server:
        yield server

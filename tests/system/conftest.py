"""What tests with programs of the system share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tollgate.testing import TestServer

if TYPE_CHECKING:
    from tests.support.gateway.gateways import Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Certificates and keys of a gateway and its callers."""
    from tests.support.gateway.gateways import make_place

    return make_place(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def upstream() -> Iterator[TestServer]:
    """A server by script, behind gateways."""
    with TestServer() as server:
        yield server

"""Servers to ask: a real tritonserver with arithmetic behind it, and ones for tests."""

import shutil
from pathlib import Path

import pytest

from tests.support.clients.purchases import PATIENT, RULE
from tollgate.server.triton.control import load_model
from tollgate.server.triton.launcher import TritonServer
from tollgate.testing import TestServer
from tollgate_client import DecisionClient

REPOSITORY = Path(__file__).parent / "echo_repository"


@pytest.fixture(scope="session")
def echo_server(tmp_path_factory):
    """Serve the contract of `fraud` on a free port; yield host:port."""
    folder = tmp_path_factory.mktemp("triton")
    repository = shutil.copytree(REPOSITORY, folder / "repository")
    (repository / "fraud" / "1").mkdir()  # an ensemble's version is an empty folder
    with TritonServer(repository, state=folder / "state", store_url="unused") as server:
        for model in ("echo", "fraud"):
            load_model(server, model, config=None)
        yield server.grpc_url


@pytest.fixture
def server():
    """A server of its own for each test."""
    with TestServer() as one:
        yield one


@pytest.fixture
def client(server):
    """A client with patience."""
    with DecisionClient([server.url], fallback=RULE, options=PATIENT) as one:
        yield one

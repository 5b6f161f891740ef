"""A real tritonserver with the contract of `fraud` and arithmetic behind it."""

import shutil
import sys
from pathlib import Path

import pytest

from tollgate.server.control import load_model
from tollgate.server.launcher import TritonServer

# Certificates are made as for the tests of the store.
sys.path.insert(0, str(Path(__file__).parents[1] / "tollgate" / "store"))

REPOSITORY = Path(__file__).parent / "echo_repository"


@pytest.fixture(scope="session")
def echo_server(tmp_path_factory):
    """Serve the echo repository on a free port; yield host:port."""
    folder = tmp_path_factory.mktemp("triton")
    repository = shutil.copytree(REPOSITORY, folder / "repository")
    (repository / "fraud" / "1").mkdir()  # an ensemble's version is an empty folder
    with TritonServer(repository, state=folder / "state", store_url="unused") as server:
        for model in ("echo", "fraud"):
            load_model(server, model, config=None)
        yield server.grpc_url

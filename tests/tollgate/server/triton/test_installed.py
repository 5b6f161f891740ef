"""Tests of a Triton that an image brings, laid out here from the wheel's files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tollgate.errors import SetupError
from tollgate.server.processes.environment import find_wheel
from tollgate.server.triton import control
from tollgate.server.triton.launcher import (
    TritonServer,
    build_backend_directory,
    find_installed,
)
from tollgate.server.triton.step_python import _with_libpython


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder laid out as /opt/tritonserver of an image is."""
    wheel = find_wheel()
    backends = build_backend_directory(tmp_path / "image", wheel=wheel)
    binaries = backends.parent / "bin"
    binaries.mkdir()
    (binaries / "tritonserver").symlink_to(wheel.tritonserver)
    return backends.parent


def test_where_nothing_is_installed_the_wheel_serves(tmp_path: Path) -> None:
    """A machine without the folder has no installed Triton, and that is no error."""
    assert find_installed(tmp_path / "tritonserver") is None


@pytest.mark.parametrize("name", ["python", "onnxruntime"])
def test_an_image_without_a_backend_is_refused(root: Path, name: str) -> None:
    """A trimmed image is found out before anything is started."""
    shutil.rmtree(root / "backends" / name)
    with pytest.raises(SetupError, match=rf"has no backends/{name}"):
        find_installed(root)


def test_an_image_of_another_python_is_refused(root: Path) -> None:
    """Its steps would find none of this environment's packages."""
    stub = root / "backends" / "python" / "triton_python_backend_stub"
    stub.write_bytes(b"\x7fELF...libpython3.99.so.1.0...")
    with pytest.raises(SetupError, match=r"runs Python 3\.99, this is 3\.\d+"):
        find_installed(root)


def test_the_systems_libraries_never_come_before_an_images_own() -> None:
    """An image's CUDA stands first; this Python's own libpython before everything."""
    system, own = Path("/usr/lib/x86_64-linux-gnu"), Path("/opt/python/lib")
    assert _with_libpython("/cuda", system) == f"/cuda:{system}"
    assert _with_libpython("", system) == str(system)
    assert _with_libpython("/cuda", own) == f"{own}:/cuda"


@pytest.mark.slow
def test_the_installed_server_serves_and_its_folder_stays_as_it_is(
    root: Path,
    repository: Path,
    tmp_path: Path,
    config_json: Callable[[str], str],
) -> None:
    """Backends are taken as they lie; the state folder holds no copy of them."""
    before = sorted(root.rglob("*"))
    state = tmp_path / "state"
    state.mkdir()
    with TritonServer(
        repository, state=state, store_url="unix:///nowhere", installed=root
    ) as server:
        executable = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")[0]
        control.load_model(server, "surroundings", config=config_json("surroundings"))
        told = control.infer(
            server,
            "surroundings",
            inputs={"x": np.zeros((1, 1), np.float32)},
            parameters={},
            timeout_s=30,
        )["told"]
    assert executable.decode() == str(root / "bin" / "tritonserver")
    assert told[0, 0].decode() == sys.version.split()[0]
    assert sorted(root.rglob("*")) == before
    assert not (state / "server" / "pytriton").exists()

"""Tests of the backend directory that is put together from the wheel."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tollgate.server.processes.environment import (
    Wheel,
    find_libpython,
    libpython_name,
)
from tollgate.server.triton.launcher import build_backend_directory


def _wheel(root: Path) -> Wheel:
    server = root / "site-packages" / "pytriton" / "tritonserver"
    wheel = Wheel(
        tritonserver=server / "bin" / "tritonserver",
        python_backend=server / "backends" / "python",
        stub=server / "python_backend_stubs" / "3.11" / "triton_python_backend_stub",
        caches=server / "caches",
        libraries=root / "site-packages" / "nvidia_pytriton.libs",
    )
    for directory in (wheel.python_backend, wheel.stub.parent, wheel.libraries):
        directory.mkdir(parents=True)
    (wheel.libraries / "libcudart.so").write_text("a library of the wheel")
    (wheel.python_backend / "libtriton_python.so").write_text("library")
    (wheel.python_backend / "triton_python_backend_utils.py").write_text("utils")
    wheel.stub.write_text("stub of 3.11")
    wheel.stub.chmod(0o755)
    return wheel


def test_everything_triton_looks_for_lies_side_by_side(tmp_path: Path) -> None:
    """The stub is beside the library, and the onnxruntime backend beside both."""
    backends = build_backend_directory(tmp_path / "state", wheel=_wheel(tmp_path))
    python = backends / "python"
    assert (python / "libtriton_python.so").read_text() == "library"
    assert (python / "triton_python_backend_stub").read_text() == "stub of 3.11"
    assert (python / "triton_python_backend_utils.py").is_file()
    assert "TritonPythonModel" in (backends / "onnxruntime" / "model.py").read_text()


def test_files_are_copies_that_find_the_wheels_libraries(tmp_path: Path) -> None:
    """Nothing Triton changes can reach the wheel, and $ORIGIN/../../../../ works."""
    wheel = _wheel(tmp_path)
    python = build_backend_directory(tmp_path / "state", wheel=wheel) / "python"
    stub = python / "triton_python_backend_stub"
    stub.chmod(0o100)  # as Triton does
    assert wheel.stub.stat().st_mode & 0o777 == 0o755
    origin = python.joinpath("..", "..", "..", "..", "nvidia_pytriton.libs")
    assert (origin / "libcudart.so").read_text() == "a library of the wheel"


def test_the_stub_gets_the_libpython_of_this_interpreter(tmp_path: Path) -> None:
    """A libpython of the wheel's builder is replaced, and nothing else is."""
    name = "libpython3-0123abcd.13.so.1.0"
    wheel = msgspec.structs.replace(_wheel(tmp_path), libpython=name)
    (wheel.libraries / name).write_text("the builder's")
    for _ in range(2):
        build_backend_directory(tmp_path / "state", wheel=wheel)
    folder = tmp_path / "state" / "server" / "nvidia_pytriton.libs"
    assert (folder / name).resolve() == (find_libpython() / libpython_name()).resolve()
    assert (folder / "libcudart.so").resolve() == wheel.libraries / "libcudart.so"
    assert (wheel.libraries / name).read_text() == "the builder's"


def test_a_folder_that_was_a_link_is_replaced(tmp_path: Path) -> None:
    """A state folder of an earlier release has one link to all libraries."""
    wheel = _wheel(tmp_path)
    server = tmp_path / "state" / "server"
    server.mkdir(parents=True)
    (server / wheel.libraries.name).symlink_to(wheel.libraries)
    build_backend_directory(tmp_path / "state", wheel=wheel)
    assert not (server / wheel.libraries.name).is_symlink()
    assert (wheel.libraries / "libcudart.so").is_file()
    assert not (wheel.libraries / "libcudart.so").is_symlink()


def test_building_twice_changes_nothing(tmp_path: Path) -> None:
    """A second build leaves files alone that a running server may have open."""
    wheel = _wheel(tmp_path)
    python = build_backend_directory(tmp_path / "state", wheel=wheel) / "python"
    before = {file.name: file.stat().st_ino for file in python.iterdir()}
    build_backend_directory(tmp_path / "state", wheel=wheel)
    assert {file.name: file.stat().st_ino for file in python.iterdir()} == before


def test_a_new_wheel_replaces_what_changed(tmp_path: Path) -> None:
    """After an upgrade the new library and the new stub are there."""
    wheel = _wheel(tmp_path)
    build_backend_directory(tmp_path / "state", wheel=wheel)
    wheel.stub.write_text("a newer stub")
    os.utime(wheel.python_backend / "libtriton_python.so", (1, 1))
    python = build_backend_directory(tmp_path / "state", wheel=wheel) / "python"
    assert (python / "triton_python_backend_stub").read_text() == "a newer stub"
    assert (python / "libtriton_python.so").stat().st_mtime == 1

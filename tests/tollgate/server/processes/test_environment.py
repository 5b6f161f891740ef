"""Tests of what the machine offers, and of the sentences when it does not."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from tollgate.errors import InputError, SetupError
from tollgate.server.processes import environment
from tollgate.server.processes.resources import measure


def test_the_wheel_is_found_without_importing_it() -> None:
    """Looking for the binaries does not run the wheel's code."""
    wheel = environment.find_wheel()
    assert os.access(wheel.tritonserver, os.X_OK)
    assert wheel.stub.parent.name == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert (wheel.python_backend / "libtriton_python.so").is_file()
    assert "pytriton" not in sys.modules


@pytest.mark.parametrize("python", environment.PYTHONS, ids=str)
def test_the_wheel_has_a_stub_for_each_python(python: tuple[int, int]) -> None:
    """The versions that pass the check are those that a stub lies there for."""
    wheel = environment.find_wheel()
    folder = wheel.stub.parent.with_name("{}.{}".format(*python))
    assert (folder / wheel.stub.name).is_file()


def test_a_libpython_that_the_wheel_brings_is_named() -> None:
    """A stub linked to a file among the wheel's libraries looks for that name."""
    wheel = environment.find_wheel()
    needed = set(re.findall(rb"libpython[\w.-]+", wheel.stub.read_bytes()))
    here = {name for name in needed if (wheel.libraries / name.decode()).exists()}
    assert {name.decode() for name in here} == {wheel.libpython} - {""}


def test_a_missing_package_names_the_extra() -> None:
    """A package that is not installed is one sentence with the pip command."""
    with pytest.raises(SetupError, match=r"no_such_wheel .*'\.\[server\]'"):
        environment.package_directory("no_such_wheel")


def test_the_first_directory_with_libpython_wins(tmp_path: Path) -> None:
    """The running interpreter's own library stands before the system's."""
    own, system = tmp_path / "own", tmp_path / "system"
    for directory in (own, system):
        directory.mkdir()
        (directory / "libpython3.99.so.1.0").touch()
    found = environment.find_libpython(
        name="libpython3.99.so.1.0", directories=[tmp_path, own, system]
    )
    assert found == own


def test_a_missing_libpython_names_the_package(tmp_path: Path) -> None:
    """Without libpython the message says which package to install."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(SetupError, match=rf"apt-get install libpython{version}"):
        environment.find_libpython(directories=[tmp_path])


def test_this_machine_is_good_enough() -> None:
    """What the tests run on passes the checks."""
    environment.require_platform()
    measure().require(1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"system": "Darwin"}, "Linux x86-64, this is Darwin"),
        ({"machine": "aarch64"}, "this is Linux aarch64"),
        ({"glibc": "2.31"}, "glibc 2.35 .* has 2.31"),
        ({"glibc": ""}, "has another C library"),
        ({"python": (3, 9)}, "3.12 or 3.13, this is 3.9"),
        ({"python": (3, 14)}, "3.10, 3.11, 3.12 or 3.13, this is 3.14"),
    ],
)
def test_an_unfit_machine_is_named(
    facts: dict[str, str | tuple[int, int]], words: str
) -> None:
    """Each way a machine can be unfit says what it is and what would do."""
    fit = {"system": "Linux", "machine": "x86_64", "glibc": "2.35", "python": (3, 10)}
    environment.require_platform(**fit)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=words):
        environment.require_platform(**(fit | facts))  # type: ignore[arg-type]


def test_a_free_port_can_be_listened_on() -> None:
    """A port that was called free passes the check of a requested one."""
    environment.require_port(environment.free_port())


def test_a_taken_port_is_one_sentence() -> None:
    """A port somebody listens on is named with its purpose and the way out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError) as caught:
            environment.require_port(port, purpose="metrics")
    assert str(caught.value) == (
        f"metrics port {port} on 127.0.0.1 cannot be used: address already in use; "
        "stop the process that has it, or choose 0 for any free port"
    )


def test_a_number_that_is_no_port_is_refused() -> None:
    """65536 is wrong input, not a lack of this machine."""
    with pytest.raises(InputError, match="65536 is not a port"):
        environment.require_port(65536)

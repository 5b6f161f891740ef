"""A release's environment is whole or not there, and a failure says what would help."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from converters.parity.target_runtime import cache_folder, environment, requirements
from tollgate.errors import SetupError
from tollgate.repository.models.targets import target

RELEASE = "26.07"
MAKE = f"""
from converters.parity.target_runtime import environment
from tollgate.repository.models.targets import target
print(environment(target("{RELEASE}")))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a pip that knows of no index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "cache" / "tollgate" / "targets"


def wheels(folder: Path, *, onnxruntime: str) -> None:
    """Fill a folder that pip installs from with packages that are only versions."""
    folder.mkdir()
    numpy = requirements(target(RELEASE))[1].partition("==")[2]
    for name, version in (("onnxruntime", onnxruntime), ("numpy", numpy)):
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}/__init__.py": f"__version__ = '{version}'\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
            f"Version: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{file},,\n" for file in files) + f"{info}/RECORD,,\n"
        path = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for file, content in (files | {f"{info}/RECORD": record}).items():
                wheel.writestr(file, content)


def making() -> subprocess.Popen[str]:
    """Start to make the environment in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", MAKE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(cache: Path) -> list[str]:
    """Name what a cache holds, lock files apart."""
    names = (path.name for path in cache.iterdir())
    return sorted(name for name in names if not name.endswith(".lock"))


def test_the_cache_stands_where_users_keep_theirs(monkeypatch, tmp_path):
    """XDG_CACHE_HOME when it is a full path, otherwise ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".cache" / "tollgate" / "targets"
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == usual
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == usual
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/tollgate/targets")


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SetupError, match=r"cannot be made: Not a directory; .*XDG"):
        environment(target(RELEASE))


@pytest.mark.slow
def test_without_an_index_one_sentence_says_what_to_do(cache, monkeypatch, tmp_path):
    """Exit status 2, nothing left; a folder that has another version is no help."""
    with pytest.raises(SetupError) as caught:
        environment(target(RELEASE))
    assert str(caught.value) == (
        "the environment of Triton 26.07 cannot be made: pip finds no package index "
        "that has onnxruntime==1.27.0; check the network, or give pip an index or "
        "a folder of wheels (PIP_INDEX_URL, PIP_FIND_LINKS)"
    )
    assert caught.value.exit_status == 2
    assert left(cache) == []
    wheels(tmp_path / "wheels", onnxruntime="1.23.2")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(SetupError) as caught:
        environment(target(RELEASE))
    assert f"there is no onnxruntime==1.27.0 for Python {mine} on" in str(caught.value)
    assert str(caught.value).endswith("another Python; the release has 3.12")
    assert left(cache) == []


@pytest.mark.slow
def test_one_killed_while_building_leaves_nothing_that_is_used(
    cache, monkeypatch, tmp_path
):
    """kill -9 half-way; then two at once, who both get the same whole one."""
    wheels(tmp_path / "wheels", onnxruntime="1.27.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    builder = making()
    until = time.monotonic() + 60
    while not list(cache.glob(".*.new-*/environment/pyvenv.cfg")):
        assert builder.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    (half,) = left(cache)
    assert half.startswith(".")
    both = [making(), making()]
    said = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    (made,) = left(cache)
    python = cache / made / "bin" / "python"
    assert {out.strip() for out, _ in said} == {str(python)}
    assert environment(target(RELEASE)) == python
    # A Python that is gone, as after an upgrade: rebuilt.
    python.unlink()
    assert environment(target(RELEASE)) == python
    assert python.exists()

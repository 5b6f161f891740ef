"""What is installed holds every file of the packages, not the Python alone."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tollgate.server.processes.environment import free_port

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = Path(__file__).resolve().parents[2]
SETUPTOOLS = tomllib.loads((HOUSE / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = ("tollgate", "converters", "clients", "loadtests")
MADE = (".pyc", ".md")  # bytecode, and papers about the code


def _left_out(package: str) -> list[str]:
    """Name the files of a package that no pattern of pyproject.toml takes along."""
    root = HOUSE / package
    patterns = SETUPTOOLS["package-data"].get(package, [])
    apart = HOUSE / "clients" / "python"  # a distribution of its own
    files = [
        file for file in root.rglob("*") if file.is_file() and apart not in file.parents
    ]
    return [
        str(file.relative_to(root))
        for file in files
        if file.suffix not in (".py", *MADE)
        and not any(
            fnmatchcase(str(file.relative_to(root)), pattern.replace("**/", "*"))
            for pattern in patterns
        )
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_installed_with_it(package: str) -> None:
    """Lua, C, headers and YAML lie beside the code that reads them, in a wheel too."""
    assert _left_out(package) == []


def test_every_package_is_in_the_wheel() -> None:
    """A new folder with code at the top of the tree is found, or the wheel lacks it."""
    with_code = {file.parent.name for file in HOUSE.glob("*/__init__.py")}
    taken = {
        pattern.rstrip("*") for pattern in SETUPTOOLS["packages"]["find"]["include"]
    }
    assert with_code - {"tests"} <= taken == set(PACKAGES)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this tree and unpack it, as pip does."""
    source = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(HOUSE / name, source / name)
    for name in PACKAGES:
        shutil.copytree(
            HOUSE / name,
            source / name,
            ignore=shutil.ignore_patterns("__pycache__", "python"),
        )
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from setuptools import build_meta; "
            "build_meta.build_wheel(sys.argv[1])",
            str(out),
        ],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("tollgate-*.whl")
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def _environment(site: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _from_wheel(site: Path, folder: Path, *words: str) -> str:
    """Run a command of the wheel in a folder; what it prints on both."""
    done = subprocess.run(
        [sys.executable, "-c", "from tollgate.cli import main; main()", *words],
        cwd=folder,
        env=_environment(site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in folder.rglob("*")
        if one.is_file()
    }


def test_a_wheel_writes_dashboards_and_alerts_where_the_user_is(
    installed: Path, tmp_path: Path
) -> None:
    """The chart's own files, from an empty folder; the installation stays as it is."""
    before = _contents(installed)
    assert "tollgate 0" in _from_wheel(installed, tmp_path, "--version")
    _from_wheel(installed, tmp_path, "dashboards")
    models = str(HOUSE / "model_repository")
    _from_wheel(installed, tmp_path, "alerts", "--repository", models)
    chart = HOUSE / "helm" / "tollgate" / "files"
    for name in ("dashboards", "alerts"):
        assert _contents(tmp_path / name) == _contents(chart / name)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["alerts", "dashboards"]
    assert _contents(installed) == before


def test_a_wheel_has_the_gateways_configuration(
    installed: Path, tmp_path: Path
) -> None:
    """It renders without a checkout, and names the wheel's own script."""
    code = (
        "from pathlib import Path; from tollgate.gateway.template import *; "
        "print(render(Gateway(state=Path('s'), upstream='127.0.0.1:8001', "
        "listen='127.0.0.1:8443', health_listen='127.0.0.1:8444', "
        "tls_cert=Path('c'), tls_key=Path('k'), keys=Path('keys'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=_environment(installed),
        capture_output=True,
        text=True,
        check=True,
    )
    script = installed / "tollgate" / "gateway" / "files" / "inspection.js"
    assert str(script) in done.stdout
    assert (
        script.read_bytes()
        == (
            HOUSE / "helm" / "tollgate" / "files" / "gateway" / "inspection.js"
        ).read_bytes()
    )


def test_a_wheel_renders_templates(installed: Path, tmp_path: Path) -> None:
    """The templates of a product and of a page are in the wheel."""
    code = (
        "from tollgate.product.policy_text import slo_text; "
        "from tollgate.monitor.monitor_page import render; "
        "print(slo_text('shop')); "
        "print(render('tollgate/monitor/templates/monitor.html.j2', "
        "{'title': 'No drift', 'drifting': False, 'looked': '', 'products': []}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=_environment(installed),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "budget_ms:" in done.stdout
    assert "<h1>No drift</h1>" in done.stdout


@pytest.mark.system("nginx", "openssl")
def test_a_wheel_runs_the_gateway_from_an_empty_folder(
    installed: Path, tmp_path: Path
) -> None:
    """Certificates, a key, and nginx before a server; all it writes is here."""
    before = _contents(installed)
    _from_wheel(installed, tmp_path, "gateway", "certificates", "certs")
    _from_wheel(installed, tmp_path, "gateway", "key", "shop", "--api-keys", "keys")
    ports = [free_port(), free_port()]
    words = ["--tls-cert", "certs/server.pem", "--tls-key", "certs/server.key"]
    words += ["--api-keys", "keys", "--listen", f"127.0.0.1:{ports[0]}"]
    words += ["--health-listen", f"127.0.0.1:{ports[1]}"]
    with subprocess.Popen(
        [
            *(sys.executable, "-c", "from tollgate.cli import main; main()"),
            *("gateway", "run", *words),
        ],
        cwd=tmp_path,
        env=_environment(installed),
        stderr=subprocess.PIPE,
        text=True,
    ) as gateway:
        try:
            assert gateway.stderr is not None
            said = gateway.stderr.readline()
            assert said.startswith(f"127.0.0.1:{ports[0]} → 127.0.0.1:8001, keys")
            asked = http.client.HTTPConnection("127.0.0.1", ports[1])
            asked.request("GET", "/healthz")
            assert asked.getresponse().status == 200
            asked.close()
        finally:
            gateway.terminate()
            gateway.communicate()
    assert gateway.returncode == 0
    here = sorted(one.name for one in tmp_path.iterdir())
    assert here == [".tollgate", "certs", "keys"]
    assert _contents(installed) == before

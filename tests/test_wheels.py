"""
Each wheel does its main job outside of the checkout.

Every test runs in an environment of its own wheels, which pip installs there without
their requirements: the libraries of other projects come from the environment that runs
the tests, through links that leave out every package of this project.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest

import tollgate
from tollgate import compiled
from tollgate.server.processes.environment import free_port
from tollgate.testing.supervised import Supervised

HOUSE = Path(__file__).resolve().parent.parent
VERSION = tollgate.__version__
# Distribution -> its folder, what a build reads, and its import packages.
PARTS = {
    "tollgate": (".", ("tollgate", "clients"), ("tollgate", "clients")),
    "tollgate_client": ("clients/python", ("tollgate_client",), ("tollgate_client",)),
    "tollgate_converters": ("converters", (".",), ("converters",)),
}
# Files of a package's folder that belong to its distribution, or to nothing installed.
ASIDE = {"pyproject.toml", "README.md", "LICENSE"}
IGNORED = ("__pycache__", "build", "dist", "*.egg-info", "*.pyc")
MODELS = HOUSE / "model_repository"
PURCHASE = {
    "transaction_id": ["q-1"],
    "customer_id": ["carol"],
    "terminal_id": ["kiosk"],
    "amount": [12.34],
    "event_time": [1_790_000_000_000_000],
}


def _sources(part: str) -> dict[str, bytes]:
    """Read the files that the wheel of a part has to contain, by their path in it."""
    folder, _, packages = PARTS[part]
    found = {}
    for package in packages:
        root = HOUSE / folder
        root = root if root.name == package else root / package
        left_out = shutil.ignore_patterns(*IGNORED)
        for where, folders, files in os.walk(root):
            names = [*folders, *files]
            gone = left_out(where, names) | (ASIDE if Path(where) == root else set())
            # Distributions of their own.
            gone |= {"clients": {"python"}, "tollgate": {"_compiled"}}.get(
                package, set()
            )
            folders[:] = [name for name in folders if name not in gone]
            for name in set(files) - gone:
                path = Path(where, name)
                found[f"{package}/{path.relative_to(root)}"] = path.read_bytes()
    return {name: text for name, text in found.items() if not name.endswith(".md")}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel of each part from a copy of its sources, outside of git."""
    built = {}
    for part, (folder, read, _) in PARTS.items():
        source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
        for name in (*ASIDE, *read):
            path = HOUSE / folder / name
            if path.is_file():
                shutil.copyfile(path, source / name)
            else:
                shutil.copytree(
                    path,
                    source / name,
                    ignore=shutil.ignore_patterns(*IGNORED, "python"),
                    dirs_exist_ok=True,
                )
        build = (
            "import sys; from setuptools import build_meta; "
            "build_meta.build_wheel(sys.argv[1])"
        )
        done = subprocess.run(
            [sys.executable, "-c", build, str(out)],
            cwd=source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (built[part],) = out.iterdir()
    return built


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Link the installed packages of other projects into one folder."""
    folder = tmp_path_factory.mktemp("libraries")
    ours = ("tollgate", "converters", "clients", "loadtests", "__editable__")
    for kind in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(kind)).iterdir():
            link = folder / path.name
            if not path.name.startswith(ours) and not link.exists():
                link.symlink_to(path)
    return folder


class Environment:
    """
    A virtual environment with some wheels of this project.

    Args:
        folder: Where it is made.
        libraries: Folder with the packages of other projects.
        wheels: Wheel files to install.
    """

    def __init__(self, folder: Path, *, libraries: Path, wheels: list[Path]) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *options, *map(str, wheels)], check=True)
        (self.site / "libraries.pth").write_text(f"{libraries}\n")

    def run(self, folder: Path, *command: str | Path, status: int = 0) -> str:
        """Run a program of the environment in a folder; return what it printed."""
        done = self.result(folder, *command)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def result(
        self, folder: Path, program: str, *words: str | Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder."""
        return subprocess.run(
            [self.bin / program, *words],
            cwd=folder,
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
        )

    def variables(self) -> dict[str, str]:
        """Copy this process's environment, without what leads to the checkout."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return {**own, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="session")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the compiled loops from a copy of its sources."""
    out, source = tmp_path_factory.mktemp("loops"), tmp_path_factory.mktemp("source")
    shutil.copytree(
        compiled.FOLDER,
        source,
        ignore=shutil.ignore_patterns(*IGNORED, "*.so", "*.c"),
        dirs_exist_ok=True,
    )
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    options = ["--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*pip, *options, "--wheel-dir", out, source], check=True)
    (built,) = out.iterdir()
    return built


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="session")
def environments(
    tmp_path_factory: pytest.TempPathFactory, libraries: Path, wheels: dict[str, Path]
) -> dict[str, Environment]:
    """Install each part alone, and the converters next to the library."""
    chosen = {part: [part] for part in PARTS}
    chosen["both"] = ["tollgate", "tollgate_converters"]
    return {
        name: Environment(
            tmp_path_factory.mktemp(name),
            libraries=libraries,
            wheels=[wheels[part] for part in parts],
        )
        for name, parts in chosen.items()
    }


def test_the_loops_join_the_library(
    wheels: dict[str, Path], loops: Path, libraries: Path, tmp_path: Path
) -> None:
    """Their wheel adds a module for each source to the library's package."""
    with zipfile.ZipFile(loops) as wheel:
        files = [one for one in wheel.namelist() if ".dist-info/" not in one]
    names = {one.stem for one in compiled.FOLDER.glob("*.pyx")}
    suffix = EXTENSION_SUFFIXES[0]
    assert set(files) == {f"tollgate/_compiled/{one}{suffix}" for one in names}
    both = Environment(
        tmp_path / "both", libraries=libraries, wheels=[wheels["tollgate"], loops]
    )
    _, in_use = both.run(tmp_path, "tollgate", "--version").splitlines()
    assert set(in_use.removeprefix("compiled loops: ").split(", ")) == names


# Contents ----------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_wheel_has_every_file_of_its_packages(
    part: str, wheels: dict[str, Path]
) -> None:
    """Lua, C and templates are next to the code that reads them, and nothing else."""
    with zipfile.ZipFile(wheels[part]) as wheel:
        packed = {
            name: wheel.read(name)
            for name in wheel.namelist()
            if ".dist-info/" not in name
        }
    assert packed == _sources(part)


def test_every_package_is_in_one_wheel_except_the_load_tests() -> None:
    """A new folder with code at the top of the checkout is installed, or a test."""
    with_code = {path.parent.name for path in HOUSE.glob("*/__init__.py")}
    installed = {package for _, _, packages in PARTS.values() for package in packages}
    assert with_code - installed == {"loadtests", "tests"}


@pytest.mark.parametrize("part", PARTS)
def test_no_wheel_requires_a_package_of_ours_by_name(
    part: str, wheels: dict[str, Path]
) -> None:
    """pip would fetch another project's `tollgate` from PyPI."""
    with zipfile.ZipFile(wheels[part]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    assert (metadata["Name"], metadata["Version"]) == (part, VERSION)
    requirements = metadata.get_all("Requires-Dist")
    assert requirements
    assert not [line for line in requirements if line.startswith("tollgate")]


@pytest.mark.parametrize("part", PARTS)
def test_an_environment_has_no_other_part(
    part: str, environments: dict[str, Environment], tmp_path: Path
) -> None:
    """The links to libraries lead to no package of the checkout."""
    code = (
        "import importlib.util as u; print(*(n for n in ('tollgate', 'clients', "
        "'tollgate_client', 'converters', 'loadtests', 'tests') if u.find_spec(n)))"
    )
    found = environments[part].run(tmp_path, "python", "-c", code).split()
    assert sorted(found) == sorted(PARTS[part][2])


# The library -------------------------------------------------------------------------


def test_the_library_writes_dashboards_and_alerts_where_the_user_is(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    """The files are those of the chart; the installation stays as it is."""
    library = environments["tollgate"]
    before = _contents(library.site)
    printed = library.run(tmp_path, "tollgate", "--version")
    assert printed.startswith(f"tollgate {VERSION}\ncompiled loops: none, ")
    library.run(tmp_path, "tollgate", "dashboards")
    library.run(tmp_path, "tollgate", "alerts", "--repository", MODELS)
    chart = HOUSE / "helm" / "tollgate" / "files"
    for name in ("dashboards", "alerts"):
        assert _contents(tmp_path / name) == _contents(chart / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alerts", "dashboards"]
    assert _contents(library.site) == before


def test_the_library_renders_the_gateways_configuration(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    """It renders without a checkout, and names the wheel's own script."""
    code = (
        "from pathlib import Path; from tollgate.gateway.template import *; "
        "print(render(Gateway(state=Path('s'), upstream='127.0.0.1:8001', "
        "listen='127.0.0.1:8443', health_listen='127.0.0.1:8444', "
        "tls_cert=Path('c'), tls_key=Path('k'), keys=Path('keys'))))"
    )
    library = environments["tollgate"]
    printed = library.run(tmp_path, "python", "-c", code)
    script = Path("tollgate", "gateway", "files", "inspection.js")
    assert str(library.site / script) in printed
    chart = HOUSE / "helm" / "tollgate" / "files" / "gateway" / "inspection.js"
    assert (library.site / script).read_bytes() == chart.read_bytes()


def test_the_library_renders_templates(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    """The templates of a product and of a page are in the wheel."""
    code = (
        "from tollgate.product.files import slo_text; "
        "from tollgate.monitor.monitor_page import render; "
        "print(slo_text('shop')); "
        "print(render('tollgate/monitor/templates/monitor.html.j2', "
        "{'title': 'No drift', 'tone': 'calm', 'looked': '', 'products': []}))"
    )
    printed = environments["tollgate"].run(tmp_path, "python", "-c", code)
    assert "budget_ms:" in printed
    assert "<h1>No drift</h1>" in printed


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (("convert", "model.json", "--out", "out"), "converters"),
        (("score", "rows.csv", "--url", "127.0.0.1:1"), "tollgate_client"),
    ],
)
def test_the_library_alone_names_the_wheel_that_a_command_needs(
    command: tuple[str, ...],
    missing: str,
    environments: dict[str, Environment],
    tmp_path: Path,
) -> None:
    """One line with the folder of a checkout and the wheel file, and exit status 2."""
    for name in ("model.json", "rows.csv"):
        (tmp_path / name).write_text("{}\n")
    printed = environments["tollgate"].run(tmp_path, "tollgate", *command, status=2)
    assert printed.count("\n") == 1
    assert printed.startswith(f"tollgate: {missing} is not installed; install it with")
    wheel = missing.replace("converters", "tollgate_converters")
    assert f"pip install ./dist/{wheel}-{VERSION}-py3-none-any.whl" in printed


@pytest.mark.system("nginx", "openssl")
def test_the_library_runs_the_gateway_from_an_empty_folder(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    """It makes certificates and a key, and runs nginx; all it writes is there."""
    library = environments["tollgate"]
    before = _contents(library.site)
    library.run(tmp_path, "tollgate", "gateway", "certificates", "certs")
    library.run(tmp_path, "tollgate", "gateway", "key", "shop", "--api-keys", "keys")
    ports = [free_port(), free_port()]
    words = ["--tls-cert", "certs/server.pem", "--tls-key", "certs/server.key"]
    words += ["--api-keys", "keys", "--listen", f"127.0.0.1:{ports[0]}"]
    words += ["--health-listen", f"127.0.0.1:{ports[1]}"]
    with subprocess.Popen(
        [library.bin / "tollgate", "gateway", "run", *words],
        cwd=tmp_path,
        env=library.variables(),
        stderr=subprocess.PIPE,
        text=True,
    ) as gateway:
        try:
            assert gateway.stderr is not None
            line = gateway.stderr.readline()
            assert line.startswith(f"127.0.0.1:{ports[0]} → 127.0.0.1:8001, keys")
            health = http.client.HTTPConnection("127.0.0.1", ports[1])
            health.request("GET", "/healthz")
            assert health.getresponse().status == 200
            health.close()
        finally:
            gateway.terminate()
            gateway.communicate()
    assert gateway.returncode == 0
    here = sorted(path.name for path in tmp_path.iterdir())
    assert here == [".tollgate", "certs", "keys"]
    assert _contents(library.site) == before


# A server of the library, and the client ----------------------------------------------


@pytest.fixture(scope="session")
def server(
    environments: dict[str, Environment], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Serve a copy of the model repository with the library's wheel; its address."""
    library, folder = environments["tollgate"], tmp_path_factory.mktemp("served")
    shutil.copytree(MODELS, folder / "models", ignore=shutil.ignore_patterns(*IGNORED))
    supervised = Supervised(
        folder / "models",
        folder / "state",
        python=library.python,
        environment=library.variables(),
    )
    try:
        supervised.wait(supervised.ready)
        yield supervised.grpc_url
    finally:
        supervised.stop()


CALL = """
import json, sys
from {module} import Client

with Client(sys.argv[1]) as client:
    answer = client.decide(json.loads(sys.argv[2]), deadline_s=60)
print(answer.decision[0], answer.score[0])
"""


@pytest.mark.slow
def test_the_client_alone_decides_against_a_server_of_the_library(
    environments: dict[str, Environment], server: str, tmp_path: Path
) -> None:
    """Two wheels, each installed alone: one serves the repository, the other calls."""
    code = CALL.format(module="tollgate_client")
    words = ("python", "-c", code, server, json.dumps(PURCHASE))
    decision, score = environments["tollgate_client"].run(tmp_path, *words).split()
    assert decision == "approve"
    assert 0 <= float(score) < 0.5


@pytest.mark.slow
def test_the_former_import_of_the_client_works_next_to_the_library(
    libraries: Path, wheels: dict[str, Path], server: str, tmp_path: Path
) -> None:
    """Scripts that import `clients.client` need both wheels."""
    both = Environment(
        tmp_path / "environment",
        libraries=libraries,
        wheels=[wheels["tollgate"], wheels["tollgate_client"]],
    )
    code = CALL.format(module="clients.client")
    printed = both.run(tmp_path, "python", "-c", code, server, json.dumps(PURCHASE))
    assert printed.startswith("approve ")
    lines = [json.dumps({name: column[0] for name, column in PURCHASE.items()})]
    (tmp_path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
    words = ("--url", server, "--repository", MODELS, "--out", "out.jsonl")
    both.run(tmp_path, "tollgate", "score", "rows.jsonl", *words)
    assert json.loads((tmp_path / "out.jsonl").read_text())["decision"] == "approve"


# The converters ----------------------------------------------------------------------

TRAIN = """
import numpy as np, xgboost
rows = np.random.default_rng(7).normal(size=(400, 4)).astype("f4")
model = xgboost.XGBClassifier(n_estimators=12, max_depth=3, n_jobs=1)
model.fit(rows, (rows[:, 0] + rows[:, 1] ** 2 > 1).astype(int))
model.save_model("model.json")
np.savez("rows.npz", rows=rows, answers=model.predict_proba(rows))
"""


@pytest.mark.slow
def test_the_converters_convert_a_model_that_answers_as_before(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    """They are installed next to the library; XGBoost itself gives the answers."""
    both = environments["both"]
    both.run(tmp_path, "python", "-c", TRAIN)
    both.run(tmp_path, "tollgate", "convert", "model.json", "--out", "converted")
    session = onnxruntime.InferenceSession(tmp_path / "converted" / "model.onnx")
    with np.load(tmp_path / "rows.npz") as saved:
        (found,) = session.run(["probabilities"], {"features": saved["rows"]})
        np.testing.assert_allclose(found, saved["answers"], rtol=0, atol=1e-6)
    record = msgspec.json.decode(
        (tmp_path / "converted" / "artifact.json").read_bytes()
    )
    assert record["source"]["framework"] == "xgboost"
    assert (tmp_path / "converted" / "card.html").read_text().lstrip()[
        :15
    ] == "<!DOCTYPE html>"


STRANGERS = {
    "no library": (None, "it is not installed"),
    "another project's package": ("", "found another project's package in "),
    "that package, with our version": (
        f"__version__ = {VERSION!r}\n",
        "found another project's package in ",
    ),
    "another version": (
        "__version__ = '9.8.7'\nPARTS = ('tollgate_converters',)\n",
        "found version 9.8.7 in ",
    ),
}


@pytest.mark.parametrize(("code", "found"), STRANGERS.values(), ids=list(STRANGERS))
def test_converters_without_their_library_name_its_wheel(
    code: str | None, found: str, environments: dict[str, Environment], tmp_path: Path
) -> None:
    """The import fails with one line, whatever package is called `tollgate`."""
    if code is not None:
        (tmp_path / "tollgate.py").write_text(code)
    trial = "import converters.conversion"
    done = environments["tollgate_converters"].result(tmp_path, "python", "-c", trial)
    assert done.returncode == 1
    (line,) = (x for x in done.stderr.splitlines() if x.startswith("ImportError: "))
    assert f"tollgate_converters {VERSION} needs the library of Tollgate" in line
    assert found in line
    assert line.endswith(f"pip install ./dist/tollgate-{VERSION}-py3-none-any.whl")


def test_a_command_with_converters_of_another_version_prints_one_line(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    """The command line reports the error of the import, without a traceback."""
    code = (
        "import tollgate; tollgate.__version__ = '9.8.7'; "
        "from tollgate.cli import main; main()"
    )
    (tmp_path / "model.json").write_text("{}")
    words = ("python", "-c", code, "convert", "model.json", "--out", "out")
    printed = environments["both"].run(tmp_path, *words, status=2)
    assert printed.count("\n") == 1
    assert "found version 9.8.7 in " in printed

"""In an interpreter of its own: what each part imports, and the README's examples."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from xgboost import XGBClassifier

from tests.support.checkout import checkout_environment
from tollgate.pipeline import wait_for_store
from tollgate.server.serving.embedded import Embedded, serve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = Path(__file__).resolve().parent.parent
PROJECT, *PARTS = (
    tomllib.loads((HOUSE / folder / "pyproject.toml").read_text())["project"]
    for folder in (".", "clients/python", "converters")
)
SERVED_ON = "127.0.0.1:8001"  # what the README's examples call


def python(code: str, *arguments: str) -> str:
    """Run code in an interpreter of its own, warnings as errors; its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=HOUSE,
        env=checkout_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Imports -----------------------------------------------------------------------------

# Import every module of some packages where only some libraries can be imported.
IMPORT_ALL = """
import importlib, pkgutil, sys

names, allowed = sys.argv[1].split(","), set(sys.argv[2].split(","))
allowed |= set(sys.stdlib_module_names) | {"tollgate", "tollgate_client", "converters"}

class Only:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Only)
for name in names:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(found.name)
"""


def libraries(*extras: str) -> str:
    """Name, with commas, what can be imported where only these extras are installed."""
    more = dict(PROJECT["optional-dependencies"])
    more |= {part["name"]: part["dependencies"] for part in PARTS}
    return importable(
        PROJECT["dependencies"] + [line for one in extras for line in more[one]]
    )


def importable(requirements: list[str]) -> str:
    """Name, with commas, what can be imported where only these are installed."""
    waiting = [*requirements]
    packages: set[tuple[str, str]] = set()
    while waiting:
        wanted = Requirement(waiting.pop())
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in packages:
                continue
            packages.add((name, extra))
            waiting += [
                line
                for line in metadata.requires(name) or []
                if not (marker := Requirement(line).marker)
                or marker.evaluate({"extra": extra})
            ]
    files = [file for name, _ in packages for file in metadata.files(name) or []]
    return ",".join({file.parts[0].partition(".")[0] for file in files})


@pytest.mark.parametrize(
    ("modules", "extras"),
    [
        ("tollgate.steps,tollgate.settings,tollgate.history,tollgate.replay", []),
        ("tollgate.store,tollgate.features,tollgate.policy,tollgate.validation", []),
        ("tollgate.explanation,tollgate.journal,tollgate.tracing", []),
        ("tollgate.testing", ["testing"]),
        ("tollgate.repository,tollgate.server,tollgate.cli", ["server"]),
        ("tollgate.supervisor,tollgate.observability", ["server"]),
        ("converters,tollgate.simulate,tollgate.evaluation", ["tollgate_converters"]),
        ("tollgate.audit,tollgate.redecide,tollgate.challenger", ["server"]),
        ("tollgate.cli,tollgate.monitor,tollgate.stream", ["image"]),
    ],
)
def test_modules_import_with_the_libraries_they_claim(
    modules: str, extras: list[str]
) -> None:
    """A core install imports what runs in a step; extras and parts import their own."""
    python(IMPORT_ALL, modules, libraries(*extras))


def test_the_client_imports_with_numpy_and_grpc_alone() -> None:
    """Nothing of ours, either: a service installs it without Tollgate."""
    (client,) = (part for part in PARTS if part["name"] == "tollgate_client")
    code = IMPORT_ALL + "print({'tollgate', 'google'} & set(sys.modules))"
    allowed = importable(client["dependencies"])
    assert python(code, "tollgate_client", allowed) == "set()\n"


def test_a_step_reads_its_files_with_the_core_alone() -> None:
    """Spec, policy and store open where only the core's libraries are there."""
    store = "unix:///nowhere.sock"
    repository = "model_repository"
    code = (
        IMPORT_ALL
        + f"""
from pathlib import Path
from tollgate.features.spec.feature_spec import load_spec
from tollgate.policy import load_policy
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
spec = load_spec(Path("{repository}/fraud_features/1/features.yaml"))
policy = Path("{repository}/fraud_decision/1/policy.yaml")
load_policy(policy, feature_names=spec.feature_names)
OnlineFeatures(spec, RedisStore("{store}", deadline_s=1))
print("fine")
"""
    )
    assert python(code, "tollgate.steps", libraries()) == "fine\n"


def test_importing_steps_loads_little() -> None:
    """Redis and Triton's module are imported when a step starts, not before."""
    code = """
import sys
before = set(sys.modules)
from tollgate.steps import DecisionStep, FeatureStep
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names)))
"""
    loaded = {name for name in python(code).split() if "cython" not in name}
    # msgspec uses typing_extensions where it is installed, and does without it.
    may = {"msgspec", "numpy", "tollgate", "typing_extensions", "yaml"}
    assert {"msgspec", "numpy", "tollgate"} <= loaded <= may


def test_the_command_line_loads_little() -> None:
    """`tollgate --version` imports few libraries; a command imports its own."""
    code = """
import contextlib, io, sys
before = set(sys.modules)
from tollgate.cli import main
sys.argv = ["tollgate", "--version"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names)))
"""
    loaded = {name for name in python(code).split() if "cython" not in name}
    typer = {"typer", "annotated_doc", "rich", "shellingham", "typing_extensions"}
    assert {"tollgate", "typer"} <= loaded
    assert loaded <= typer | {"tollgate", "msgspec", "numpy", "yaml"}


HEAVY = {"grpc", "lightgbm", "pandas", "scipy", "sklearn", "xgboost"}


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ("import converters.conversion, converters.folder", HEAVY - {"grpc"}),
        ("import converters.sources.worker", HEAVY),
        (
            "from converters.sources.worker import open_model; "
            "open_model(file, form='xgboost', missing=None)",
            {"pandas", "sklearn"},
        ),
    ],
)
def test_a_conversion_imports_what_its_file_needs(
    code: str, lacks: set[str], tmp_path: Path
) -> None:
    """scikit-learn takes more time to import than most files to convert."""
    file = tmp_path / "model.json"
    model = XGBClassifier(n_estimators=2, max_depth=1).fit([[0.0], [1.0]], [0, 1])
    model.save_model(file)
    head = "import pathlib, sys; file = pathlib.Path(sys.argv[1]); "
    tail = "; print(*(name for name, module in sys.modules.items() if module))"
    loaded = set(python(head + code + tail, str(file)).split())
    assert {"converters", "numpy"} <= loaded
    assert not lacks & loaded


@pytest.mark.parametrize(
    "file",
    sorted(HOUSE.glob("model_repository/*/*/model.py")),
    ids=lambda file: file.parts[-3],
)
def test_model_py_is_a_class_and_an_import(file: Path) -> None:
    """What Triton loads adds nothing to the library's step."""
    docstring, import_, class_ = ast.parse(file.read_text()).body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(import_, ast.ImportFrom)
    assert import_.module == "tollgate.steps"
    assert isinstance(class_, ast.ClassDef)
    assert class_.name == "TritonPythonModel"
    assert [ast.unparse(base) for base in class_.bases] == [import_.names[0].name]
    assert all(isinstance(part, ast.Expr) for part in class_.body)  # its docstring


# The README's examples ---------------------------------------------------------------


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """The repository as cloned, with an empty store that may take its time."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(HOUSE / "model_repository", folder / "repository")
    wait_for_store(folder / "repository", product="fraud", deadline_ms=5_000)
    with serve(folder / "repository", state=folder / "state") as server:
        yield server


def blocks(language: str) -> list[str]:
    """List the README's code blocks of one language."""
    readme = (HOUSE / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", readme, re.M | re.S)


@pytest.mark.slow
def test_readmes_file_gets_the_readmes_answer(
    product: Embedded, tmp_path: Path
) -> None:
    """The sample answer is what the repository as cloned says to the sample file."""
    (purchases,) = blocks("csv")
    (tmp_path / "purchases.csv").write_text(purchases)
    answer = python(
        "from tollgate.cli import main; main()",
        *("score", str(tmp_path / "purchases.csv")),
        *("--url", product.grpc_url, "--format", "jsonl"),
    )
    (shown,) = (block for block in blocks("text") if "┏" in block)
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in shown.splitlines()
        if line.startswith("│")
    ]
    head = [cell.strip() for cell in shown.splitlines()[1].strip("┃").split("┃")]
    answered = [json.loads(line) for line in answer.splitlines()]
    for row in answered:
        row["score"] = row["score"] if row["score"] is None else f"{row['score']:.4f}"
    assert rows == [[str(row[name]) for name in head] for row in answered]


@pytest.mark.slow
def test_readmes_client_example_runs(product: Embedded) -> None:
    """The Python example decides two purchases."""
    (example,) = blocks("python")
    assert SERVED_ON in example
    example = example.replace(SERVED_ON, product.grpc_url)
    # The first request of a client pays for its imports and its connection.
    example = example.replace("deadline_s=0.5", "deadline_s=10")
    decided = [line.split()[0] for line in python(example).splitlines()]
    assert decided == ["approve", "decline"]

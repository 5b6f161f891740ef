"""The papers and the house say the same as the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import converters
import tollgate
from tollgate import schema
from tollgate.cli.app import app
from tollgate.features.windows.entity_entries import ENTRY, HEADER
from tollgate.policy.hysteresis import STATE_HEAD
from tollgate.store.stored_decisions import DECIDED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = Path(__file__).resolve().parents[2]
PAPERS = sorted(
    [
        *HOUSE.glob("*.md"),
        *HOUSE.glob("docs/**/*.md"),
        *HOUSE.glob("helm/*.md"),
        *HOUSE.glob("clients/python/*.md"),
    ]
)
PROJECT, *_ = PROJECTS = [
    tomllib.loads((HOUSE / folder / "pyproject.toml").read_text())["project"]
    for folder in (".", "clients/python", "converters")
]
PARTS = ("tollgate", "converters", "clients", "loadtests", "model_repository", "docs")


def read(name: str) -> str:
    """Read a file of the checkout."""
    return (HOUSE / name).read_text()


def targets() -> set[str]:
    """Name the Makefile's targets."""
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


def commands(text: str) -> set[str]:
    """Name the targets that a paper tells a person to make."""
    return set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))


# The commands ------------------------------------------------------------------------


def test_help_lists_every_target_with_a_sentence() -> None:
    """`make` alone names all there is to make, and nothing else."""
    shown = subprocess.run(
        ["make", "-s"], cwd=HOUSE, capture_output=True, text=True, check=True
    ).stdout
    listed = re.findall(r"^  make ([a-z-]+) +\S.*$", shown, re.MULTILINE)
    assert sorted(listed) == sorted(targets())
    assert len(shown.splitlines()) == len(listed)


def test_papers_and_makefile_name_the_same_commands() -> None:
    """Each command in a paper exists, and each target stands in a paper people read."""
    for paper in PAPERS:
        assert commands(paper.read_text()) <= targets(), paper
    told = commands(read("README.md")) | commands(read("CONTRIBUTING.md"))
    assert targets() - {"help"} == told


def test_ci_runs_the_readmes_test_commands_and_nothing_else() -> None:
    """.ci/run is `make test` and `make test-system`, with the programs they need."""
    script = HOUSE / ".ci" / "run"
    assert script.stat().st_mode & 0o111 == 0o111
    lines = [line for line in script.read_text().splitlines() if line[:1] != "#"]
    assert lines == [
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "export CI=true",
        "sh tools/install-programs.sh",
        "make test",
        "make test-system",
    ]
    assert "\nmake test " in read("README.md")
    assert "\nmake test-system " in read("README.md")


def fake_python(folder: Path, *, version: str, refuses: str) -> Path:
    """Make a Python of some version that cannot import one module."""
    path = folder / f"python-{version}"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *"{refuses}"*) exit 1 ;; esac\necho {version}\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "refuses", "words"),
    [
        (
            "3.9",
            "sys.exit(not",
            "is Python 3.10, 3.11, 3.12 or 3.13 (found: 3.9); install one, or name it",
        ),
        (
            "3.14",
            "sys.exit(not",
            "(found: 3.14); install one, or name it: make setup PYTHON=/path/to",
        ),
        ("3.12", "import ensurepip", "apt-get install python3.12-venv"),
        ("3.13", "Python.h", "apt-get install build-essential python3.13-dev"),
    ],
)
def test_setup_says_in_one_sentence_what_is_missing(
    tmp_path: Path, version: str, refuses: str, words: str
) -> None:
    """No Python that fits, or one without venv: one line that says what to install."""
    fake = fake_python(tmp_path, version=version, refuses=refuses)
    done = subprocess.run(
        [
            "sh",
            "tools/make-venv.sh",
            str(tmp_path / "venv"),
            "no-such-python",
            str(fake),
        ],
        cwd=HOUSE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


# The papers --------------------------------------------------------------------------


def anchors(paper: Path) -> set[str]:
    """Name the anchors that GitHub gives a paper's headings."""
    headings = re.findall(r"^#+ (.+)$", paper.read_text(), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_links_lead_somewhere(paper: Path) -> None:
    """Each link inside the project leads to a file, and to a heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", paper.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = (paper.parent / name).resolve() if name else paper
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_files_that_papers_name_exist(paper: Path) -> None:
    """A path in backquotes that begins with a folder of ours is there."""
    for name in re.findall(r"`([\w.-]+/[\w./-]+\.\w+)`", paper.read_text()):
        if name.partition("/")[0] in PARTS:
            assert (HOUSE / name).exists(), name


def test_modules_that_the_architecture_names_exist() -> None:
    """A module may stand without `tollgate/`, as in the path of a release."""
    named = re.findall(
        r"(?<![\w/.])([a-z_]+/[a-z_/]+\.py)", read("docs/architecture.md")
    )
    assert len(named) > 20
    modules = {str(path) for path in HOUSE.glob("[a-z]*/**/*.py")}
    missing = {
        name for name in named if not any(one.endswith(f"/{name}") for one in modules)
    }
    assert not missing


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_no_paragraph_stands_twice(paper: Path) -> None:
    """A long line of prose begins like no other one of its page."""
    lines = [line for line in paper.read_text().splitlines() if line[:1] != "|"]
    counts = Counter(line[:150] for line in lines if len(line) >= 150)
    assert [start for start, count in counts.items() if count > 1] == []


def figures_by_name(paper: str) -> dict[str, list[list[str]]]:
    """Read tables whose rows begin with a `name`: the leading figures of each cell."""
    rows = re.findall(r"^\| `(\w+)`[^|]*\|(.*)\|$", read(paper), re.MULTILINE)
    return {
        name: [
            re.sub(r" \([^)]*\)", "", cell).strip().split("; ")[:2]
            for cell in cells.split("|")
        ]
        for name, cells in rows
        if "; " in cells
    }


def test_the_readme_has_the_journeys_figures() -> None:
    """Decisions a second and p99 of each service and load are those of the page."""
    shown = figures_by_name("README.md")
    assert len(shown) >= 5
    assert shown == figures_by_name("docs/journey.md")


def test_the_readmes_picture_has_the_delays_of_the_configurations() -> None:
    """Each step's delay stands in the lines of the step."""
    picture = read("README.md").partition("```text")[2].partition("```")[0]
    for step in ("features", "model", "decision"):
        config = read(f"model_repository/fraud_{step}/config.pbtxt")
        (delay_us,) = re.findall(r"max_queue_delay_microseconds: (\d+)", config)
        part = picture.partition(f"fraud_{step} ")[2].partition("fraud_")[0]
        assert re.findall(r"([\d.]+) ms", part) == [f"{int(delay_us) / 1000:g}"]


def test_decisions_are_numbered_and_listed() -> None:
    """Each ADR has a number of its own, the four parts, and a line in the list."""
    folder = HOUSE / "docs" / "adr"
    pages = sorted(folder.glob("[0-9]*.md"))
    numbers = [page.name[:4] for page in pages]
    assert all(one.isdigit() for one in numbers)
    assert len(set(numbers)) == len(numbers)  # pages are written at the same time
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]} ")
        assert "\nStatus: " in text
        for part in ("Context", "Decision", "Consequences", "Measured"):
            assert f"\n## {part}\n" in text, (page.name, part)
        assert f"({page.name})" in (folder / "README.md").read_text()


def test_changelog_begins_with_this_version() -> None:
    """The newest entry of the changelog is the version of package and library."""
    newest = re.search(r"^## \[([^\]]+)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    versions = {project["version"] for project in PROJECTS}
    versions.add(
        tomllib.loads(read("tollgate/_compiled/pyproject.toml"))["project"]["version"]
    )
    assert versions == {newest[1]} == {tollgate.__version__, converters.__version__}


def test_every_part_is_a_distribution() -> None:
    """The library lists the distributions by which its other parts recognise it."""
    assert [project["name"] for project in PROJECTS] == list(tollgate.PARTS)


# Dependencies ------------------------------------------------------------------------


def direct_dependencies(*, locked: str = "") -> set[str]:
    """Name the packages of all parts; or those locked, on a Python: no GPU's."""
    lines = [line for project in PROJECTS for line in project["dependencies"]]
    for project in PROJECTS:
        for extra, more in project.get("optional-dependencies", {}).items():
            if not (locked and extra in ("gpu", "tensorrt")):
                lines += more
    wanted = map(Requirement, lines)
    return {
        canonicalize_name(one.name)
        for one in wanted
        if not (locked and one.marker)
        or one.marker.evaluate({"python_version": locked})
    }


def test_every_dependency_has_its_line() -> None:
    """docs/dependencies.md has a row for each direct dependency, and for no other."""
    rows = re.findall(r"^\| `([^`]+)` \|", read("docs/dependencies.md"), re.MULTILINE)
    assert Counter(map(canonicalize_name, rows)) == Counter(direct_dependencies())


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_dependency_is_pinned_once(version: str) -> None:
    """On each Python, constraints.txt holds one exact pin of each direct dependency."""
    pins: Counter[str] = Counter()
    for line in read("constraints.txt").splitlines():
        if line.startswith("#"):
            continue
        pin, _, marker = line.partition(" ; ")
        assert re.fullmatch(r"[a-z0-9-]+==[\w.!]+", pin), line
        if not marker or Marker(marker).evaluate({"python_version": version}):
            pins[pin.partition("==")[0]] += 1
    assert set(pins.values()) == {1}
    assert direct_dependencies(locked=version) <= set(pins)


# An installer and, in the same command, a package of ours by its name: neither a path
# such as ./dist/tollgate-0.1.0-py3-none-any.whl nor the checkout's '.[server]'.
INSTALLERS = r"(?:pip[x3]?|uvx?|poetry|conda|mamba)"
BY_NAME = re.compile(
    rf"\b{INSTALLERS}\b[^\n|&;`#]*?(?<![\w/.-])tollgate(?:[-_]\w+)*(?![\w/.-]|\S*\.whl)"
)
WITH_EXTRA = re.compile(r"(?<![\w/.-])tollgate(?:[-_]\w+)*\[[a-z{]")


def installs_by_name(text: str) -> list[str]:
    """Find the lines that ask a package index for a package of ours."""
    return [
        line.strip()
        for line in text.splitlines()
        if BY_NAME.search(line) or WITH_EXTRA.search(line)
    ]


def test_nothing_installs_a_package_of_ours_by_its_name() -> None:
    """At PyPI, tollgate is a stranger's: only the checkout and wheel files install."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=HOUSE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    found = {}
    for name in filter(None, names):
        path = HOUSE / name
        if path == Path(__file__).resolve() or not path.is_file():
            continue
        if lines := installs_by_name(path.read_bytes().decode("utf-8", "replace")):
            found[name] = lines
    assert found == {}


@pytest.mark.parametrize(
    ("line", "is_by_name"),
    [
        ("pip install tollgate", True),
        ("pip install 'tollgate[server]'", True),
        ("    python -m pip install -U tollgate==0.1.0", True),
        ("RUN pip install --no-cache-dir tollgate-client", True),
        ("uv pip install tollgate_client[grpc]", True),
        ("pipx run tollgate up", True),
        ('install it with: "tollgate[{extra}]"', True),
        ("!pip3 install numpy tollgate", True),
        ("pip install -e '.[server]' && tollgate up", False),
        ("pip install './dist/tollgate-0.1.0-py3-none-any.whl[server]'", False),
        ("pip install ./dist/tollgate-*.whl", False),
        ("pip install tollgate-0.1.0-py3-none-any.whl", False),
        ("pip install /tmp/tollgate", False),
        ("pip install xgboost==3.0.2", False),
        ("tollgate up", False),
    ],
)
def test_an_install_by_name_is_found(line: str, is_by_name: bool) -> None:
    """Package names are found in any installer's words, paths and wheels are not."""
    assert bool(installs_by_name(line)) is is_by_name


# The library -------------------------------------------------------------------------

# A complete command, to run as it stands: up to the end of its sentence.
COMMAND = re.compile(r"\btollgate [a-z]+ (?:(?![.;]\s)[^`])*")


def command_options() -> set[str]:
    """List the options of every `tollgate` command, but not those of every program."""
    found: set[str] = set()
    commands = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        found.update(one for option in command.params for one in option.opts)
    return {one for one in found if one[:2] == "--"} - {"--help", "--version"}


def named_options(source: str, options: set[str]) -> list[str]:
    """
    List line and option for each command-line option in a module's strings.

    Docstrings, arguments of a parser of its own, `--name=value` as other programs take
    it, and complete commands do not count.
    """
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "add_argument":
                skipped.update(map(id, node.args))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [getattr(one, "value", "") for one in node.values]
            text = "".join(one if isinstance(one, str) else "{}" for one in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w=-])", COMMAND.sub("", text))
        found += [f"{node.lineno}: {one}" for one in named if one in options]
    return found


def test_the_library_names_no_option_of_the_command_line() -> None:
    """Its errors name an argument or a thing; the command line names the option."""
    options = command_options()
    assert {"--sample", "--repository", "--metrics-port"} <= options
    paths = [*HOUSE.glob("tollgate/**/*.py"), *HOUSE.glob("converters/**/*.py")]
    found = {
        str(path.relative_to(HOUSE)): named
        for path in paths
        if HOUSE / "tollgate" / "cli" not in path.parents
        and (named := named_options(path.read_text(), options))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise ValueError("no rows: hand in a --sample")', ["1: --sample"]),
        ('x = f"{path} is a pickle (--sample)"', ["1: --sample"]),
        ('def f():\n    """Read the rows of --sample."""', []),
        ('parser.add_argument("--sample", required=True)', []),
        ('[program, "--sample=rows.csv", "--other"]', []),
        ('x = f"convert it: tollgate convert {path} --sample rows.csv"', []),
        (
            'x = f"convert it: tollgate convert {path}; or use --sample"',
            ["1: --sample"],
        ),
    ],
)
def test_an_option_in_a_string_is_found(source: str, found: list[str]) -> None:
    """In plain and formatted strings; not where it is documented or passed on."""
    assert named_options(source, {"--sample"}) == found


# The contract ------------------------------------------------------------------------


def test_contract_has_every_degraded_bit() -> None:
    """The published table has each bit with its value, and no bit that is none."""
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| `(\w+)` \|", read("docs/contract.md"), re.M
    )
    assert {name: (int(bit), int(value)) for bit, value, name in rows} == {
        bit.name: (bit.value.bit_length() - 1, bit.value) for bit in schema.Degraded
    }


def test_contract_has_every_output_and_parameter() -> None:
    """What goes over the wire stands in the contract by name."""
    contract = read("docs/contract.md")
    inputs = (schema.TRANSACTION_ID, schema.AMOUNT, schema.EVENT_TIME)
    release = (
        schema.RELEASE_PARAMETER,
        schema.SPEC_HASH_PARAMETER,
        schema.FEATURE_NAMES_PARAMETER,
        schema.ENTITY_NAMES_PARAMETER,
        schema.FIELDS_PARAMETER,
        schema.LISTS_PARAMETER,
        schema.STORE_DEADLINE_PARAMETER,
    )
    requests = (schema.DRY_RUN, schema.DEADLINE_US)
    for name in (*inputs, *schema.ANSWER_TYPES, *requests, *release):
        assert f"`{name}`" in contract, name


def table(heading: str) -> list[int]:
    """Read the first column of the first table of the contract with this head."""
    rows = read("docs/contract.md").partition(f"\n| {heading} |")[2].splitlines()[2:]
    offsets = []
    for row in rows:
        found = re.match(r"\| (\d+) \|", row)
        if found is None:
            break
        offsets.append(int(found[1]))
    return offsets


def offsets(layout: np.dtype, *, without: str = "\0") -> list[int]:
    """Where the fields of a layout begin; slots right after their length count once."""
    assert layout.fields is not None
    return [
        layout.fields[name][1]
        for name in layout.names or ()
        if not re.search(without, name)
    ]


def test_contract_has_the_layouts_byte_by_byte() -> None:
    """Header, entry and context begin their fields where the contract says."""
    assert table("header byte") == offsets(HEADER)
    assert table("entry byte") == offsets(ENTRY)
    assert table("decided byte") == [*offsets(DECIDED), DECIDED.itemsize]
    assert table("hysteresis byte") == offsets(STATE_HEAD)
    context = schema.context_dtype(("customer", "terminal"))
    assert table("byte") == offsets(context, without="_id$|^error$|^earlier$")
    assert f"{context.itemsize} bytes, little-endian" in read("docs/contract.md")


REPLACED = frozenset(
    [
        "anew",
        "told",
        "tell",
        "tells",
        "telling",
        "teller",
        "kept",
        "beside",
        "afterwards",
        "begun",
        "asked",
        "gathered",
        "gathering",
        "ladder",
        "rung",
    ]
)
# Names of the public test server.
PUBLIC = {"tollgate/testing/script.py:Asked", "tollgate/testing/server.py:asked"}


def names_of(source: str) -> Iterator[str]:
    """Yield the names of its classes and functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def words_of(name: str) -> set[str]:
    """Split a name at underscores and capitals."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


@pytest.mark.parametrize("folder", ["tollgate", "converters", "clients", "loadtests"])
def test_names_use_the_words_of_the_glossary(folder: str) -> None:
    """No module, class or function has a word that the glossary replaced."""
    found = [
        f"{path.relative_to(HOUSE)}:{name}"
        for path in sorted((HOUSE / folder).rglob("*.py"))
        for name in (path.stem, *names_of(path.read_text()))
        if words_of(name) & REPLACED
    ]
    assert set(found) <= PUBLIC


def test_the_glossary_lists_the_words_that_names_may_not_have() -> None:
    """The left column of its last table."""
    table = read("docs/glossary.md").split("## Words that we replaced")[1]
    listed = words_of(" ".join(re.findall(r"^\| (.+?) \|", table, re.MULTILINE)))
    assert listed >= REPLACED


@pytest.mark.parametrize(
    ("name", "words"),
    [("told_lines", {"told", "lines"}), ("ReasonTeller", {"reason", "teller"})],
)
def test_a_replaced_word_is_found_in_a_name(name: str, words: set[str]) -> None:
    """Between underscores and before capitals."""
    assert words_of(name) == words
    assert words_of(name) & REPLACED


def imported(file: Path) -> set[str]:
    """Name the top packages that a Python file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_only_tests_of_load_tests_import_them() -> None:
    """Product tests use `tests/support` and the library, never the load tests."""
    own = HOUSE / "tests" / "loadtests"
    importers = [
        str(file.relative_to(HOUSE))
        for file in sorted((HOUSE / "tests").rglob("*.py"))
        if own not in file.parents and "loadtests" in imported(file)
    ]
    assert importers == []

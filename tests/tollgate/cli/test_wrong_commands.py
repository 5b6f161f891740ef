"""A wrong command is one line with the mistake and the mend; nothing is written."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tollgate.cli import main

CHECKOUT = Path(__file__).parents[3]
PURCHASE = (
    "transaction_id,customer_id,terminal_id,amount,event_time\n"
    "p-1,alice,shop,12.34,2026-01-15T08:15:00\n"
)
SPEC = "model_repository/fraud_features/1/features.yaml"
POLICY = "model_repository/fraud_decision/1/policy.yaml"
REASON = ("--reason", "a test")
TLS = ("--tls-cert", "a.pem", "--tls-key", "a.key")
# A port that another process has, in the words of a command.
TAKEN = "{taken}"

# Words of the command; then pieces of the line: what is wrong, and how to mend it.
WRONG: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "no such command": (["relase"], ["relase", "release"]),
    "no such command of a group": (["release", "lsit"], ["lsit", "list"]),
    "no such option": (["check", "--produkt", "fraud"], ["--produkt", "--product"]),
    "a missing argument": (["score"], ["file", "tollgate score --help"]),
    "a missing option": (["journal", "retain"], ["--keep", "--help"]),
    "no such choice": (["check", "--severity", "high"], ["severity", "'warning'"]),
    "a word for a number": (["budget", "--rows", "many"], ["--rows", "--help"]),
    "a number that is too small": (["budget", "--rate", "-3"], ["--rate", "1"]),
    "not a number": (["evaluate", "absent.csv", "--tolerance", "nan"],
                     ["--tolerance", "nan is no number"]),
    "a date that is none": (["simulate", "x.parquet", "--start", "may"],
                            ["--start", "%Y-%m-%d"]),
    "no people to simulate": (["simulate", "x.parquet", "--customers", "0"],
                              ["--customers", "1"]),
    "a product of release list": (["release", "list", "--product", "frod"],
                                  ["'frod'", "did you mean fraud?", "credit, fraud"]),
    "a product of release history": (["release", "history", "--product", "frod"],
                                     ["'frod'", "fraud?", "credit, fraud"]),
    "a product of score": (["score", "good.csv", "--product", "credt"],
                           ["'credt'", "credit?", "credit, fraud"]),
    "a product of up": (["up", "--product", "frod"], ["'frod'", "fraud?"]),
    "a product of monitor": (["monitor", "--product", "frod"], ["'frod'", "fraud?"]),
    "a product to simulate": (["simulate", "x.parquet", "--product", "frod"],
                              ["'frod'", "fraud?"]),
    "a product to remove": (["product", "remove", "frod", "--yes"],
                            ["'frod'", "fraud?", "credit, fraud"]),
    "a product to convert for": (["convert", "model.json", "--out", "new",
                                  "--product", "frod"], ["'frod'", "fraud?"]),
    "a product of alerts": (["alerts", "--out", "new", "--product", "frod"],
                            ["'frod'", "fraud?"]),
    "no such release": (["release", "show", "fraud-99"], ["fraud-99", "known: "]),
    "no release to activate": (["release", "activate", "fraud-99", *REASON],
                               ["fraud-99", "known: "]),
    "neither a release nor versions": (["release", "activate", *REASON],
                                       ["name a release", "--set"]),
    "no STEP=VERSION": (["release", "activate", "--set", "model", *REASON],
                        ["--set", "'model'", "STEP=VERSION"]),
    "no such feature": (["features", "show", "amuont"], ["amuont", "amount"]),
    "no server to score": (["score", "good.csv"], ["no server", "tollgate up"]),
    "no server to measure": (["budget"], ["no server", "tollgate up"]),
    "no server to ask": (["release", "status"], ["no server", "tollgate up"]),
    "no server for a list": (["lists", "add", "--early", "stolen", "x"],
                             ["no server", "tollgate up"]),
    "a list that no policy names": (["lists", "add", "stolen", "x"],
                                    ["'stolen'", "--early"]),
    "a missing file": (["score", "absent.csv"], ["absent.csv", "cannot be read"]),
    "a folder for a file": (["score", "folder.csv"], ["folder.csv", "directory"]),
    "an empty file": (["score", "empty.csv"], ["empty.csv", "cannot be read"]),
    "an empty Parquet file": (["features", "build", "empty.parquet", "new.parquet"],
                              ["empty.parquet", "cannot be read"]),
    "a binary file": (["score", "binary.csv"], ["binary.csv", "cannot be read"]),
    "a binary file of labels": (["labels", "load", "binary.csv"], ["binary.csv"]),
    "a kind of file that nobody reads": (["score", "binary.bin"],
                                         ["binary.bin", ".parquet", ".csv"]),
    "a column that is not there": (["score", "column.csv"],
                                   ["customer_id", "column missing"]),
    "a file that ends otherwise": (["score", "good.csv", "--out", "x.xls"],
                                   ["x.xls", ".parquet"]),
    "a folder for a policy": (["policy", "check", "model_repository"],
                              ["model_repository", "directory"]),
    "a binary policy": (["policy", "check", "binary.bin"], ["binary.bin"]),
    "an empty policy": (["policy", "check", "empty.yaml"], ["empty.yaml"]),
    "a key of a policy": (["policy", "check", "misspelt.yaml"],
                          ["misspelt.yaml", "line ", "lables"]),
    "empty features": (["features", "show", "--spec", "empty.yaml"], ["empty.yaml"]),
    "features in binary": (["features", "show", "--spec", "binary.bin"],
                           ["binary.bin"]),
    "features that are missing": (["features", "diff", SPEC, "absent.yaml"],
                                  ["absent.yaml", "cannot be read"]),
    "a journal that is none": (["journal", "verify", "empty-folder"],
                               ["empty-folder", "holds no journal"]),
    "a journal to replay": (["journal", "replay", "empty-folder"],
                            ["empty-folder", "holds no journal"]),
    "a journal that is missing": (["journal", "verify", "absent"],
                                  ["absent", "is no folder"]),
    "an age without a unit": (["journal", "retain", "--keep", "400"],
                              ["--keep", "400"]),
    "nobody to erase": (["journal", "erase"], ["nobody", "--customer"]),
    "a port in use": (["up", "--grpc-port", TAKEN],
                      [TAKEN, "--grpc-port", "grpc_port", "in use by process",
                       "choose another port"]),
    "a metrics port in use": (["journal", "run", "--metrics-port", TAKEN],
                              [TAKEN, "--metrics-port", "in use by process"]),
    "a port of the gateway in use": (
        ["gateway", "run", *TLS, "--api-keys", "k", "--listen", "127.0.0.1:" + TAKEN],
        [TAKEN, "--listen", "in use by process"]),
    "one port for two": (["up", "--grpc-port", "18999", "--metrics-port", "18999"],
                         ["18999", "--grpc-port", "choose another"]),
    "a port beyond all": (["up", "--grpc-port", "70000"], ["--grpc-port", "65535"]),
    "no store": (["serve"], ["--store-url", "tollgate up"]),
    "no repository": (["release", "list", "--repository", "absent"], ["absent"]),
    "a file for a repository": (["check", "--repository", "good.csv"], ["good.csv"]),
    "a model that is none": (["convert", "binary.bin", "--out", "new"],
                             ["binary.bin"]),
    "a model that is missing": (["convert", "absent.json", "--out", "new"],
                                ["absent.json", "cannot be read"]),
    "a folder that is full": (["convert", "model.json", "--out", "model_repository"],
                              ["model_repository"]),
    "no converted model": (["publish", "empty-folder"], ["empty-folder"]),
    "half of a comparison": (["publish", "empty-folder", "--source", "m.json"],
                             ["names no raw rows", "--sample ROWS"]),
    "a bad share": (["challenger", "start", "--set", "model=1", "--mode", "canary",
                     "--percent", "150", *REASON], ["--percent", "150"]),
    "no trial to report": (["challenger", "report"], ["no trial"]),
}  # fmt: skip


def tree(folder: Path) -> dict[str, str]:
    """Hash everything below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has one: the models, a good file and many bad ones."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copytree(CHECKOUT / "model_repository", folder / "model_repository")
    policy = (folder / POLICY).read_text()
    assert "\nlabels:" in policy
    texts = {
        "good.csv": PURCHASE,
        "column.csv": PURCHASE.replace("customer_id", "customer"),
        "empty.csv": "",
        "empty.parquet": "",
        "empty.yaml": "",
        "misspelt.yaml": policy.replace("\nlabels:", "\nlables:"),
        "a.pem": "",
        "a.key": "",
        "k": "",
        "model.json": "{}",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for name in ("binary.csv", "binary.bin"):
        (folder / name).write_bytes(bytes(range(256)) * 4)
    for name in ("folder.csv", "empty-folder"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


Call = Callable[[Sequence[str]], tuple[int, str, str]]


@pytest.fixture
def call(
    filled: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """Run a command line in this process, in that folder."""
    monkeypatch.chdir(filled)
    for name in os.environ:
        if name.startswith("TOLLGATE_"):
            monkeypatch.delenv(name)

    def call_(words: Sequence[str]) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tollgate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call_


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_is_one_line_and_writes_nothing(
    name: str, call: Call, filled: Path, taken: int
) -> None:
    """Status 2; the line names the mistake and the mend; the folder is as before."""
    words, pieces = WRONG[name]
    before = tree(filled)
    status, out, err = call([one.replace(TAKEN, str(taken)) for one in words])
    assert (status, out) == (2, ""), err
    assert err.startswith("tollgate")
    assert err.count("\n") == 1, err
    for piece in pieces:
        assert piece.replace(TAKEN, str(taken)) in err
    assert tree(filled) == before


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("grpc_prot: 1", ["grpc_prot", "did you mean grpc_port?", "metrics_port"]),
        ("grpc_port: many", ["grpc_port", "'many'", "int"]),
        ("grpc_port: 70000", ["grpc_port", "70000", "65535"]),
        ("- a", ["is not YAML of settings"]),
        ("a: [", ["is not YAML of settings"]),
        ("\0", ["is not YAML of settings"]),
        ("product: frod", ["'frod'", "did you mean fraud?", "credit, fraud"]),
    ],
)
def test_a_wrong_setting_is_one_line(
    text: str, pieces: Sequence[str], call: Call, filled: Path
) -> None:
    """A key, a value or a product of tollgate.yaml; any command reads them."""
    path = filled / "tollgate.yaml"
    path.write_text(text)
    before = tree(filled)
    try:
        for words in (["release", "list"], ["up"], ["evaluate", "good.csv"]):
            status, out, err = call(words)
            assert (status, out, err.count("\n")) == (2, "", 1), err
            assert all(piece in err for piece in pieces), err
            assert tree(filled) == before
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("variable", "value", "pieces"),
    [
        ("TOLLGATE_GRPC_PROT", "1", ["did you mean TOLLGATE_GRPC_PORT?", "_STATE"]),
        ("TOLLGATE_GRPC_PORT", "x", ["TOLLGATE_GRPC_PORT", "'x'", "int"]),
        ("TOLLGATE_PRODUCT", "frod", ["'frod'", "did you mean fraud?"]),
    ],
)
def test_a_wrong_variable_is_one_line(
    variable: str,
    value: str,
    pieces: Sequence[str],
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nearest variable and all that settings read."""
    monkeypatch.setenv(variable, value)
    status, out, err = call(["release", "history"])
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert all(piece in err for piece in pieces), err


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("latency_objectiv_ms: 50\n", ["did you mean latency_objective_ms?", "target"]),
        ("budget_ms: {featurs: 1}\n", ["budget_ms.featurs", "features?", "reserve"]),
    ],
)
def test_a_wrong_key_of_slo_yaml_is_one_line(
    text: str, pieces: Sequence[str], call: Call, filled: Path
) -> None:
    """The nearest key and all there are."""
    path = filled / "model_repository" / "fraud" / "slo.yaml"
    content = path.read_bytes()
    path.write_text(text)
    try:
        status, out, err = call(["alerts", "--out", "new"])
    finally:
        path.write_bytes(content)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert all(piece in err for piece in ["slo.yaml", *pieces]), err
    assert not (filled / "new").exists()

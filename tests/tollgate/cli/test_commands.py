"""Commands as a person types them: output, one-line errors, exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tollgate.repository.releases.release_file import product_names

CHECKOUT = Path(__file__).parents[3]
REPOSITORY = CHECKOUT / "model_repository"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `tollgate` in an empty folder that has a copy of the repository."""
    shutil.copytree(REPOSITORY, tmp_path / "model_repository")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TOLLGATE_")
    }

    def run_(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from tollgate.cli import main; main()", *words],
            cwd=tmp_path,
            env=environment | {"COLUMNS": "200"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run_


def test_help_groups_commands_by_who_uses_them(run: Run) -> None:
    """Each command stands under its reader."""
    shown = run("--help").stdout
    for words in ("Start here", "Services", "ML engineers", "SREs", "demo", "evaluate"):
        assert words in shown


def test_check_says_sound(run: Run) -> None:
    """The committed repository has no finding in any of its products."""
    done = run("check")
    products = ", ".join(product_names(REPOSITORY))
    assert (done.returncode, done.stdout) == (0, f"{products}: sound\n")


BREAKS = {
    "corrupt model": ("fraud_model/1/model.onnx", None, "model.onnx"),
    "spec": (
        "fraud_features/1/features.yaml",
        ("lateness: 1d", "lateness: 2d"),
        "features.yaml",
    ),
    "spec hash": (
        "fraud/release.json",
        ('"spec_hash": "', '"spec_hash": "f'),
        "spec_hash",
    ),
    "wiring": (
        "fraud/config.pbtxt",
        ('output_map { key: "context"  value: "context" }', ""),
        "context",
    ),
    "no such version": (
        "fraud/release.json",
        ('"fraud_model": 1', '"fraud_model": 7'),
        "version 7",
    ),
    "no JSON": ("fraud/release.json", ("{", "["), "release.json"),
    "policy": (
        "fraud_decision/1/policy.yaml",
        ("decline: 0.80", "decline: 0.10"),
        "policy.yaml",
    ),
}


@pytest.mark.parametrize("command", ["check", "up"])
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_repository_is_status_2_and_names_the_file(
    run: Run, tmp_path: Path, name: str, command: str
) -> None:
    """No traceback; nothing is served."""
    file, change, words = BREAKS[name]
    path = tmp_path / "model_repository" / file
    if change is None:
        path.write_bytes(path.read_bytes()[:1000])
    else:
        assert change[0] in path.read_text()
        path.write_text(path.read_text().replace(*change))
    flags = ["--grpc-port", "0", "--metrics-port", "0"] if command == "up" else []
    done = run(command, *flags)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert words in said
    assert "Traceback" not in said
    assert "READY" not in said


def test_simulate_build_and_replay(run: Run, tmp_path: Path) -> None:
    """A history, its features in both types, and the same bits online."""
    size = ["--customers", "40", "--terminals", "60", "--days", "50", "--radius", "30"]
    done = run("simulate", "h.parquet", *size)
    assert done.returncode == 0, done.stderr
    history = pl.read_parquet(tmp_path / "h.parquet")
    for dtype, kind in (("float64", pl.Float64), ("float32", pl.Float32)):
        done = run("features", "build", "h.parquet", "f.parquet", "--dtype", dtype)
        assert done.returncode == 0, done.stderr
        features = pl.read_parquet(tmp_path / "f.parquet")
        assert len(features) == len(history)
        assert features["terminal_risk_7d"].dtype == kind
    days = ["--from", "2018-05-10", "--until", "2018-05-15"]
    done = run("features", "replay", "h.parquet", *days)
    assert done.returncode == 0, done.stderr
    earlier = history.filter(pl.col("event_time") < pl.datetime(2018, 5, 10))
    later = history.filter(
        (pl.col("event_time") >= pl.datetime(2018, 5, 10))
        & (pl.col("event_time") < pl.datetime(2018, 5, 15))
    )
    assert done.stdout == f"{len(later):,} vectors read online, 0 differ from offline\n"
    for days, count in (
        ([], len(history)),
        (["--until", "2018-05-10"], len(earlier)),
        (["--from", "2018-05-15"], len(history) - len(earlier) - len(later)),
    ):
        done = run("features", "replay", "h.parquet", "--json", *days)
        found = json.loads(done.stdout)
        assert (found["vectors"], found["differing"]) == (count, 0)


BAD_FILES = {
    "missing": ("absent.parquet", None, "cannot be read"),
    "no parquet": ("x.parquet", "words", "cannot be read"),
    "kind": ("x.txt", "words", "is none of .parquet"),
    "column": ("x.csv", "transaction_id,amount\n1,2\n", "customer_id: column missing"),
    "null": (
        "x.csv",
        "transaction_id,customer_id,terminal_id,amount,event_time\n1,,m,2,3\n",
        "customer_id: row 0: is null",
    ),
    "money": (
        "x.csv",
        "transaction_id,customer_id,terminal_id,amount,event_time\n1,c,m,2.005,3\n",
        "amount: row 0: '2.005' is not whole cents",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_history_is_one_line_and_status_2(
    run: Run, tmp_path: Path, name: str
) -> None:
    """File, column, row and value; no output file."""
    file, content, words = BAD_FILES[name]
    if content is not None:
        (tmp_path / file).write_text(content)
    done = run("features", "build", file, "out.parquet")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"tollgate: {file}")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.parquet").exists()


def test_score_without_a_server_says_what_to_do(run: Run) -> None:
    """One line; status 1."""
    line = json.dumps(
        {
            "transaction_id": "1",
            "customer_id": "c",
            "terminal_id": "m",
            "amount": 1.5,
            "event_time": 1_700_000_000_000_000,
        }
    )
    done = run("score", "-", "--url", "127.0.0.1:1", stdin=line)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_score_takes_and_gives_every_format(run: Run, tmp_path: Path) -> None:
    """The same decisions from Parquet, CSV and JSON lines; bad rows fail alone."""
    from tollgate.server.serving.embedded import serve

    frame = pl.DataFrame(
        {
            "transaction_id": ["1", "2", "3"],
            "customer_id": ["c", "", "c"],
            "terminal_id": ["m", "m", "m"],
            "amount": [10.0, 20.0, 2000.0],
            "event_time": [1_700_000_000_000_000] * 3,
        }
    )
    frame.write_parquet(tmp_path / "in.parquet")
    frame.write_csv(tmp_path / "in.csv")
    frame.write_ndjson(tmp_path / "in.jsonl")
    found = []
    with serve(REPOSITORY, state=tmp_path / "state") as server:
        for kind in ("parquet", "csv", "jsonl"):
            out = f"out.{kind}"
            words = ["score", f"in.{kind}", "--out", out, "--url", server.grpc_url]
            done = run(*words, "--dry-run")
            assert done.returncode == 0, done.stderr
            assert "1 of 3 rows could not be decided" in done.stderr
            path = tmp_path / out
            table = {
                "parquet": pl.read_parquet,
                "csv": pl.read_csv,
                "jsonl": pl.read_ndjson,
            }[kind](path)
            found.append((table["decision"].to_list(), table["reason_codes"].to_list()))
            assert "customer_id" in table["error"][1]
        done = run("score", "-", "--url", server.grpc_url, "--dry-run",
                   stdin=(tmp_path / "in.jsonl").read_text())  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["decision"] for line in lines] == [one or "" for one in found[0][0]]
    assert [one or "" for one in found[0][0]][1] == ""
    assert found[0][0][2] in ("review", "decline")
    assert [one or "" for one in found[1][0]] == found[2][0] == found[0][0]


def test_a_missing_client_is_one_line_with_the_wheel_file(tmp_path: Path) -> None:
    """The client is a distribution of its own; the line names its folder and file."""
    (tmp_path / "rows.csv").write_text("transaction_id\nq-1\n")
    code = (
        "import sys; sys.modules['tollgate_client'] = None; "
        "from tollgate.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "score", "rows.csv", "--url", "127.0.0.1:1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "tollgate: tollgate_client is not installed; " in done.stderr
    assert "-e ./clients/python" in done.stderr
    assert "./dist/tollgate_client-" in done.stderr

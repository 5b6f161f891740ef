"""Sealed decisions are decided again, and differences are named."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from onnx import TensorProto, helper, load, numpy_helper, save

from tests.support.audit.decided_records import decided, opened
from tests.support.audit.random_records import REPOSITORY, SPEC_HASH, made
from tollgate.audit.releases.journal_replay import replay
from tollgate.audit.worker.reasons import ReasonSealer
from tollgate.repository.models.model_files import arithmetic_of
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.schema import Degraded

F32 = np.float32
Open = Callable[..., Any]


def again(journal: Any, repository: Path | None = REPOSITORY, **more: Any) -> Any:
    """Decide a journal again."""
    return replay(journal.chain, journal.releases, repository=repository, **more)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Copy the committed model repository."""
    copy = tmp_path / "model_repository"
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY, copy, ignore=bytecode)
    return copy


def released(repository: Path) -> None:
    """Write the hashes of the repository's current files into its release."""
    release = read_release(repository, product="fraud")
    found = {
        name: hashlib.sha256((repository / name).read_bytes()).hexdigest()
        for name in release.hashes
    }
    write_release(repository, msgspec.structs.replace(release, hashes=found))


def test_every_record_is_reproduced_to_the_bit(open_journal: Open) -> None:
    """Decided one by one, replayed in batches; degraded rows, too."""
    journal = open_journal()
    bits = {3: int(Degraded.COLD_START), 5: int(Degraded.ESSENTIAL_MISSING)}
    first = decided(300, degraded=bits)
    journal.sealer.seal([first])
    journal.sealer.seal([decided(45, first=300)])
    found = again(journal)
    (part,) = found.parts
    assert (part.rows, part.same, part.differing) == (345, 345, 0)
    assert found.sound
    assert part.promise.startswith("bit for bit")
    # The rows are worth the test: every decision is there.
    assert set(first.decision.tolist()) == {0, 1, 2}
    assert len(set(first.rules.tolist())) > 2


def change_one(column: Any, value: Any) -> None:
    """Write another value, or vector, into record 4."""
    column[4] = value


@pytest.mark.parametrize(
    ("change", "aspects"),
    [
        (lambda r: change_one(r.score, np.nextafter(r.score[4], F32(2))), {"score": 1}),
        (lambda r: change_one(r.decision, (r.decision[4] + 1) % 3), {"decision": 1}),
        (lambda r: change_one(r.reason_codes, b"SMALL_AMOUNT|X"), {"codes": 1}),
        (lambda r: change_one(r.rules, 1 << 40), {"rules": 1}),
        (
            lambda r: change_one(r.degraded, int(Degraded.MODEL_OUTPUT)),
            {"degraded": 1},
        ),
        (lambda r: change_one(r.features, 1e6), None),
    ],
)
def test_difference_is_named(
    open_journal: Open, change: Callable[[Any], Any], aspects: dict[str, int] | None
) -> None:
    """One bit of a score, a decision, codes, rules, bits, a feature: one record."""
    journal = open_journal()
    records = decided(20)
    change(records)
    journal.sealer.seal([records])
    found = again(journal)
    (part,) = found.parts
    assert (part.same, part.differing) == (19, 1)
    assert not found.sound
    (one,) = found.differences
    assert one.record == f"{records.writer}:4"
    if aspects is not None:
        assert part.aspects == aspects
        assert one.what[0].startswith(next(iter(aspects)))
        assert " → " in one.what[0]
    else:
        assert "probabilities" in part.aspects


def test_record_without_a_vector_is_counted_separately(open_journal: Open) -> None:
    """For lack of consent, or with other features: neither equal nor different."""
    journal = open_journal(consent="channel")
    given = {"channel": np.where(np.arange(10) < 6, 1, 0)}
    journal.sealer.seal([decided(10, fields=given)])
    (part,) = again(journal).parts
    # The fraud product declares no field, so what its values mean is not known.
    assert (part.same, part.withheld, part.differing) == (0, 10, 0)


def test_features_without_names_are_replayed_by_number(open_journal: Open) -> None:
    """A worker without a repository numbers the features."""
    journal = open_journal(repository=None)
    journal.sealer.seal([decided(30)])
    (part,) = again(journal).parts
    assert (part.same, part.differing, part.problem) == (30, 0, "")
    ReasonSealer(journal.chain, journal.releases, repository=REPOSITORY).seal_new()
    (link,) = journal.chain.alive("reasons")
    assert link.rows > 0


def test_record_with_other_features_is_not_decided(open_journal: Open) -> None:
    """The release cannot use a vector of another spec."""
    journal = open_journal()
    journal.sealer.seal([decided(10), made(5, first=10, spec_hash=SPEC_HASH ^ 1)])
    found = again(journal)
    (part,) = found.parts
    assert (part.rows, part.same, part.foreign) == (15, 10, 5)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nowhere", "model.onnx: version 1 of fraud_model is not in the repository"),
        ("removed", "model.onnx: version 1 of fraud_model is not in the repository"),
        ("changed", "model.onnx: is not the file of release fraud-1"),
        ("unknown", "is neither in the journal nor in the repository"),
    ],
)
def test_missing_release_has_a_cause(
    open_journal: Open, repository: Path, where: str, words: str
) -> None:
    """No repository, no version, a changed file, or no release at all."""
    journal = open_journal(repository=None if where == "unknown" else repository)
    journal.sealer.seal([made(9, release="old" if where == "unknown" else "fraud-1")])
    if where == "removed":
        shutil.rmtree(repository / "fraud_model" / "1")
    elif where == "changed":
        with (repository / "fraud_model" / "1" / "model.onnx").open("ab") as file:
            file.write(b"\0")
    found = again(journal, None if where == "nowhere" else repository)
    (part,) = found.parts
    assert words in part.problem
    assert not found.sound
    assert (part.rows, part.same, part.differing) == (9, 0, 0)


def test_replay_through_another_release(open_journal: Open, repository: Path) -> None:
    """The named release decides the records of all releases."""
    journal = open_journal()
    records = decided(50)
    journal.sealer.seal([records])
    path = repository / "fraud_decision" / "1" / "policy.yaml"
    path.write_text(path.read_text().replace("review: 0.30", "review: 0.001"))
    path.write_text(path.read_text().replace("review: 0.35", "review: 0.001"))
    released(repository)
    release = read_release(repository, product="fraud")
    write_release(repository, msgspec.structs.replace(release, name="fraud-2"))
    found = again(journal, repository, through="fraud-2")
    (part,) = found.parts
    now = opened(repository, release="fraud-2")
    other = decided(50, release=now)
    moved = other.decision != records.decision
    assert moved.any()
    assert part.aspects["decision"] == moved.sum()
    assert "rules" not in part.aspects
    assert "score" not in part.aspects
    assert again(
        journal, repository
    ).sound  # through fraud-1, which the journal archived


def test_graph_with_matrix_products_has_a_tolerance(
    open_journal: Open, repository: Path
) -> None:
    """A deviation in the last bits is accepted; one above the tolerance is not."""
    weight = np.linspace(-0.02, 0.02, 15, dtype=np.float32).reshape(15, 1)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["features", "w"], ["margin"]),
            helper.make_node("Sigmoid", ["margin"], ["fraud"]),
            helper.make_node("Sub", ["one", "fraud"], ["rest"]),
            helper.make_node("Concat", ["rest", "fraud"], ["probabilities"], axis=1),
        ],
        "linear",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, 15])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.ones(1, np.float32), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])
    model.ir_version = 8
    save(model, repository / "fraud_model" / "1" / "model.onnx")
    released(repository)
    journal = open_journal(repository=repository)
    records = decided(40, release=opened(repository))
    near, far = np.float32(2e-6), np.float32(2e-4)
    for row, delta in ((1, near), (2, far)):
        records.probabilities[row] += np.array([-delta, delta])
        records.score[row] = records.probabilities[row, 1]
    journal.sealer.seal([records])
    found = again(journal, repository)
    (part,) = found.parts
    assert part.promise == "within 1e-05: MatMul"
    assert (part.same, part.differing) == (39, 1)
    assert [one.record for one in found.differences] == [f"{records.writer}:2"]
    assert again(journal, repository, tolerance=1e-3).sound
    assert again(journal, repository, tolerance=0.0).parts[0].differing >= 2


def test_trees_are_exact_and_matrices_are_not(repository: Path) -> None:
    """Also inside of another node."""
    path = repository / "fraud_model" / "1" / "model.onnx"
    trees = arithmetic_of(path)
    assert set(trees.operators) == {node.op_type for node in load(path).graph.node}
    assert trees.tolerance == 0
    inner = helper.make_graph(
        [helper.make_node("Gemm", ["a", "b"], ["c"])], "inner", [], []
    )
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    save(helper.make_model(helper.make_graph([node], "g", [], [])), path)
    assert arithmetic_of(path).loose == ("Gemm", "If")
    assert arithmetic_of(path).tolerance == 1e-5


def test_replay_changes_no_sealed_file(open_journal: Open) -> None:
    """All files keep their bytes."""
    journal = open_journal()
    journal.sealer.seal([decided(30)])
    before = {path: path.read_bytes() for path in journal.folder.glob("[0-9]*")}
    again(journal)
    assert before == {path: path.read_bytes() for path in journal.folder.glob("[0-9]*")}
    assert len(pl.read_parquet(next(journal.folder.glob("*.segment.parquet")))) == 30

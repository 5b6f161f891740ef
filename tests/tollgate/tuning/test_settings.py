"""Settings in configurations, and the winner as a named one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import InputError, RepositoryError
from tollgate.repository.lint.linting import Question, lint
from tollgate.repository.lint.product_rules import delay_us
from tollgate.repository.product_models import Product, read_product
from tollgate.repository.serving_form import queue_delay_us
from tollgate.tuning.bench import write_named
from tollgate.tuning.settings import Roles
from tollgate.tuning.space import THROUGHPUT, Candidate

REPOSITORY = Path(__file__).parents[3] / "model_repository"
BASE = Candidate(5000)
FUSED = Candidate(5000, threads=2, form="fused", fused_queue_delay_us=250)
OTHER = Candidate(
    1000, 8, 2, features_instances=2, model_instances=1, decision_instances=3
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed product."""
    leave = shutil.ignore_patterns("__pycache__")
    copy = tmp_path / "repository"
    return Path(shutil.copytree(REPOSITORY, copy, ignore=leave))


def configs_of(models: Product) -> dict[str, ModelConfig]:
    """The configurations that settings are read from."""
    return {**models.steps, models.name: models.ensemble}


def write(models: Product, candidate: Candidate, *, name: str = "found") -> list[Path]:
    """Write a named configuration."""
    return write_named(
        models.repository,
        configs_of(models),
        candidate,
        name=name,
        roles=Roles(models),
        head=["A word " * 40, "Another."],
        question=Question(
            repository=models.repository, product="fraud", config_name=name, cores=2
        ),
    )


def test_written_settings_are_read_back() -> None:
    """All knobs; and nothing else of a configuration changes."""
    models = read_product(REPOSITORY, "fraud")
    roles = Roles(models)
    configs = configs_of(models)
    assert roles.read(configs) == BASE
    changed = roles.written(configs, OTHER)
    assert roles.read(changed) == OTHER
    assert roles.written(changed, BASE) == configs
    only = roles.written(configs, Candidate(0))
    assert all(not delay_us(config) for config in only.values())
    slower = roles.written(configs, Candidate(10_000))
    assert [delay_us(slower[step]) for step in models.steps] == [9_100, 500, 400]


def test_a_configuration_has_what_can_be_set_in_it() -> None:
    """No threads without onnxruntime; no count where there are several groups."""
    models = read_product(REPOSITORY, "fraud")
    roles = Roles(models)
    assert roles.possible(THROUGHPUT, configs_of(models)) == THROUGHPUT
    models.steps["fraud_model"].backend = "other"
    models.steps["fraud_features"].instance_group.add(count=1)
    assert {*roles.possible(THROUGHPUT, configs_of(models))} == {
        *THROUGHPUT,
    } - {"threads", "features_instances"}


def test_several_preferred_sizes_are_not_tuned() -> None:
    """No candidate can say them, so they would be lost."""
    models = read_product(REPOSITORY, "fraud")
    batching = models.steps["fraud_model"].dynamic_batching
    batching.preferred_batch_size[:] = [4, 8]
    with pytest.raises(RepositoryError, match="has 2 sizes"):
        Roles(models).read(configs_of(models))


def test_the_winner_is_a_sound_named_configuration(repository: Path) -> None:
    """Of each step that differs, with its head; the linter and the reader take it."""
    models = read_product(repository, "fraud")
    files = write(models, OTHER)
    assert [path.relative_to(repository).as_posix() for path in files] == [
        "fraud_features/configs/found.pbtxt",
        "fraud_model/configs/found.pbtxt",
        "fraud_decision/configs/found.pbtxt",
    ]
    named = read_product(repository, "fraud", config_name="found")
    assert Roles(named).read(configs_of(named)) == OTHER
    report = lint(Question(repository=repository, config_name="found", cores=2))
    assert not [one for one in report.issues if one.severity]
    lines = files[1].read_text().splitlines()
    assert lines[1] == "#     tollgate up --form ensemble --model-config-name found"
    assert "# Another." in lines
    assert max(map(len, lines)) <= 88
    with pytest.raises(InputError, match="is there already"):
        write(models, OTHER)
    assert write(models, Candidate(0), name="quick") == [
        repository / f"fraud_{step}/configs/quick.pbtxt"
        for step in ("features", "model", "decision")
    ]


def test_fused_settings_are_those_that_a_fused_server_reads(repository: Path) -> None:
    """The queue delay goes to the ensemble, threads to the model, no more to others."""
    models = read_product(repository, "fraud")
    files = write(models, FUSED)
    assert [path.relative_to(repository).as_posix() for path in files] == [
        "fraud_model/configs/found.pbtxt",
        "fraud/configs/found.pbtxt",
    ]
    named = read_product(repository, "fraud", config_name="found")
    assert queue_delay_us(named.ensemble, source="fraud") == 250
    threads = named.steps["fraud_model"].parameters["intra_op_thread_count"]
    assert threads.string_value == "2"
    assert Roles(named).read(configs_of(named), form="fused") == FUSED
    head = "#     tollgate up --form fused --model-config-name found"
    assert all(head in path.read_text().splitlines() for path in files)


def test_refused_configuration_is_removed(repository: Path) -> None:
    """A delay that uses up the time of the answer; other named ones stay."""
    models = read_product(repository, "fraud")
    before = sorted(repository.glob("*/configs/*"))
    with pytest.raises(RepositoryError, match="30 ms of delay"):
        write(models, Candidate(30_000, features_instances=2))
    assert sorted(repository.glob("*/configs/*")) == before

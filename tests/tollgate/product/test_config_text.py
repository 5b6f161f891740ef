"""The configurations of a new product equal the committed ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from typer.testing import CliRunner

from tests.support.products.committed_product import copy_product
from tollgate.cli.app import app
from tollgate.features.spec.feature_spec import load_spec
from tollgate.product.files import config_texts, slo_text

MODELS = Path(__file__).resolve().parents[3] / "model_repository"
SPEC = load_spec(MODELS / "fraud_features" / "1" / "features.yaml")
# docs/adr/0011: requests are batched at the first step, and the batch stays together.
DELAYS_US = {"fraud_features": 4500, "fraud_model": 300, "fraud_decision": 200}


def config_of(text: str) -> ModelConfig:
    """Parse a config.pbtxt."""
    return text_format.Parse(text, ModelConfig())


def test_configurations_of_fraud_equal_the_committed_ones() -> None:
    """Every field in all four files."""
    texts = config_texts(SPEC)
    assert len(texts) == 4
    for name, text in texts.items():
        assert config_of(text) == config_of((MODELS / name).read_text()), name


def test_queue_delays_batch_requests_at_the_first_step() -> None:
    """The delays are 4.5, 0.3 and 0.2 ms."""
    texts = config_texts(SPEC)
    found = {
        step: config_of(
            texts[f"{step}/config.pbtxt"]
        ).dynamic_batching.max_queue_delay_microseconds
        for step in DELAYS_US
    }
    assert found == DELAYS_US


def test_check_accepts_the_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the slo.yaml that is written with them."""
    copy = copy_product(tmp_path / "model_repository", without=("config*",))
    for name, text in config_texts(SPEC).items():
        (copy / name).write_text(text)
    (copy / "fraud" / "slo.yaml").write_text(slo_text("fraud"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["check", "--product", "fraud"])
    assert (done.exit_code, done.stdout) == (0, "fraud: sound\n")

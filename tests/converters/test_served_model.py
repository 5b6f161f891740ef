"""A published model, served by the real tritonserver, answers as it was trained."""

import numpy as np
import pytest

from converters.conversion import convert_model
from converters.parity.runner import onnx_runner
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from converters.training import train_xgboost
from tollgate.pipeline import publish_and_release
from tollgate.repository.configs import to_json
from tollgate.repository.releases.rendering import merged_configs
from tollgate.server.triton.control import infer, load_model
from tollgate.server.triton.launcher import TritonServer


@pytest.mark.slow
def test_served_probabilities_are_those_of_the_published_file(
    rows, repository, spec, tmp_path
):
    """Bit for bit what onnxruntime gives here, at 1, 7 and 32 rows per request."""
    features, label = rows
    model = train_xgboost(features, label, seed=0)
    converted = convert_model(
        model_of(model),
        origin="the model",
        purpose=purpose_of(repository, "fraud"),
        sample=Sample(rows=features, names=spec.feature_names),
    )
    publish_and_release(
        converted, repository=repository, product="fraud", reason="to be served"
    )
    published = (repository / "fraud_model" / "1" / "model.onnx").read_bytes()
    expected = onnx_runner(published)(features)
    (config,) = (
        to_json(load)
        for load in merged_configs(repository, product="fraud")
        if load.name == "fraud_model"
    )
    with TritonServer(repository, state=tmp_path / "state", store_url="") as server:
        load_model(server, "fraud_model", config=config)
        for size in (1, 7, 32):
            answer = infer(
                server,
                "fraud_model",
                inputs={"features": features[:size]},
                parameters={},
                timeout_s=30,
            )
            assert np.array_equal(answer["probabilities"], expected[:size])
    np.testing.assert_allclose(expected, model.predict_proba(features), atol=1e-6)

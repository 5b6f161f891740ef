"""A foreign graph says why its answers are not explained."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from converters.explain.explanation import explain
from converters.onnx.from_sklearn import onnx_from_sklearn
from converters.sources.opening import open_source
from tollgate.explanation import decode_explanation, encode_explanation


def test_a_foreign_graph_has_no_explanation_and_says_so(tmp_path):
    """The reason names what to convert instead, and is stored in the file."""
    features = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    model = LogisticRegression().fit(features, features[:, 0] > 0)
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_from_sklearn(model))
    with open_source(path) as source:
        found = explain(source, names=("a", "b", "c"), samples=features)
    assert found.trees is found.linear is None
    assert found.reason.endswith("convert the model it was exported from")
    again = decode_explanation(encode_explanation(found), source="explain.npz")
    assert (again.reason, again.features) == (found.reason, ("a", "b", "c"))

"""A small ONNX model for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.support.server.doubling_model import doubling_onnx


@pytest.fixture(scope="session")
def doubling() -> bytes:
    """y = 2 x over float32 [N, 2] as ONNX; the sum of each row is a second output."""
    return doubling_onnx()

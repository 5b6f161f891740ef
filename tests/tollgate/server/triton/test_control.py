"""Tests of what is kept of Triton's failure messages."""

from __future__ import annotations

import pytest

from tollgate.server.triton.control import sentence


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: "
            "TritonModelException: /r/m/1/model.onnx: no such file\n\n"
            "At:\n  /x/onnx_backend.py(52): initialize\n;",
            "/r/m/1/model.onnx: no such file",
        ),
        (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid "
            "argument: instance group m_0 has kind KIND_GPU;",
            "instance group m_0 has kind KIND_GPU",
        ),
        (
            "This protocol is restricted, expecting header 'triton-…'",
            "the control API is closed: the admin header is missing or wrong",
        ),
        (
            "Internal: ModuleNotFoundError: No module named 'x'\n\nAt:\n  a(1): b",
            "No module named 'x'",
        ),
        ("plain words", "plain words"),
    ],
)
def test_the_useful_sentence_is_kept(message: str, words: str) -> None:
    """Wrapping before it and the traceback behind it are cut."""
    assert sentence(message) == words

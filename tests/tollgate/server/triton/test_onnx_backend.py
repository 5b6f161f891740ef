"""Tests of how a dynamic batch is answered; the server's part is in test_triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tollgate.engine.onnx_session import OnnxSession, Tensor
from tollgate.server.triton.onnx_backend import answer_batch


class Counting(OnnxSession):
    """The real thing, which also counts its calls."""

    calls = 0

    def run(self, names: Sequence[str], feeds: Mapping[str, Tensor]) -> list[Tensor]:
        self.calls += 1
        return super().run(names, feeds)


@pytest.fixture
def session(tmp_path: Path, doubling: bytes) -> Counting:
    """The doubling model, counting its calls."""
    path = tmp_path / "model.onnx"
    path.write_bytes(doubling)
    return Counting(path, intra_op_threads=1)


def _rows(*sizes: int) -> list[dict[str, Tensor]]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(size=(n, 2)).astype(np.float32)} for n in sizes]


def test_a_dynamic_batch_is_one_call(session: Counting) -> None:
    """Requests of any size are put together, run once and taken apart again."""
    feeds = _rows(1, 5, 2)
    answers = answer_batch(session, feeds, wanted=[["y"]] * 3, batched=True)
    assert session.calls == 1
    for feed, answer in zip(feeds, answers, strict=True):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], feed["x"] * 2)


def test_alone_equals_batched(session: Counting) -> None:
    """Company does not change a request's answer by one bit."""
    feeds = _rows(3, 1, 4)
    together = answer_batch(session, feeds, wanted=[["sum"]] * 3, batched=True)
    for feed, answer in zip(feeds, together, strict=True):
        (alone,) = answer_batch(session, [feed], wanted=[["sum"]], batched=True)
        assert isinstance(answer, dict)
        assert isinstance(alone, dict)
        np.testing.assert_array_equal(answer["sum"], alone["sum"])


def test_each_request_gets_the_outputs_it_asked_for(session: Counting) -> None:
    """Different wishes still are one call."""
    wanted = [["y"], ["sum"], ["y", "sum"]]
    answers = answer_batch(session, _rows(1, 1, 1), wanted=wanted, batched=True)
    assert [list(answer) for answer in answers] == wanted
    assert session.calls == 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            {"x": np.zeros((1, 3), np.float32)},
            r"shape \[1, 3\], the model wants [-1, 2]",
        ),
        ({"x": np.zeros((1, 2))}, "x is float64, the model wants float32"),
        ("input x is missing", "input x is missing"),
    ],
)
def test_a_bad_request_fails_alone(
    session: Counting, bad: dict[str, Tensor] | str, words: str
) -> None:
    """Its neighbours are answered in one call; it is told what is wrong."""
    first, last = _rows(2, 2)
    answers = answer_batch(
        session, [first, bad, last], wanted=[["y"]] * 3, batched=True
    )
    assert words.replace("\\", "") in str(answers[1])
    assert session.calls == 1
    for feed, answer in ((first, answers[0]), (last, answers[2])):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], feed["x"] * 2)


def test_an_empty_batch_of_bad_requests_runs_nothing(session: Counting) -> None:
    """When every request is bad, the model is left alone."""
    answers = answer_batch(session, ["bad", "worse"], wanted=[["y"]] * 2, batched=True)
    assert answers == ["bad", "worse"]
    assert session.calls == 0


def test_without_batching_each_request_stands_alone(session: Counting) -> None:
    """With max_batch_size 0 the first dimension is no row count."""
    answers = answer_batch(session, _rows(2, 3), wanted=[["y"]] * 2, batched=False)
    assert session.calls == 2
    assert [answer["y"].shape for answer in answers if isinstance(answer, dict)] == [
        (2, 2),
        (3, 2),
    ]


def test_a_request_that_breaks_the_run_fails_alone(tmp_path: Path) -> None:
    """When one request's values make onnxruntime fail, the others are answered."""
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        "lookup",
        [value("i", TensorProto.INT64, ["n"])],
        [value("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.float32([10, 20, 30]), "table")],
    )
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "model.onnx"
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    session = OnnxSession(path, intra_op_threads=1)
    feeds: list[dict[str, Tensor] | str] = [{"i": np.int64([n])} for n in (2, 99, 0)]
    answers = answer_batch(session, feeds, wanted=[["y"]] * 3, batched=True)
    assert isinstance(answers[0], dict)
    assert isinstance(answers[2], dict)
    assert [answers[0]["y"][0], answers[2]["y"][0]] == [30, 10]
    assert "out of" in str(answers[1])

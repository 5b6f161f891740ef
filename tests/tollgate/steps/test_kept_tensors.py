"""Tensors that many answers share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.steps.in_process_steps import stand_in
from tests.support.steps.triton_classes import Response
from tollgate.steps.decision_step import TensorCache


def column(*values: Any, kind: Any = np.object_) -> Any:
    """Make an output, [N, 1]."""
    return np.array(values, kind)[:, None]


def said(responses: list[Response], name: str) -> list[Any]:
    """Take the tensors of one output, response by response."""
    return [
        tensor
        for one in responses
        for tensor in one.tensors or ()
        if tensor.called == name
    ]


@pytest.fixture
def cache() -> TensorCache:
    """Cache two tensors of two outputs."""
    return TensorCache(stand_in(), names=("decision",), empty=("error",), most=2)


def test_what_is_said_again_is_the_same_tensor(cache: TensorCache) -> None:
    """In one batch and in the next; each answer has its own values all the same."""
    outputs = {
        "decision": column(b"approve", b"decline", b"approve"),
        "score": column(0.1, 0.9, 0.2, kind=np.float32),
    }
    first = cache.respond(outputs, [0, 1, 2, 3])
    again = cache.respond({"decision": column(b"approve")}, [0, 1])
    tensors = said(first, "decision")
    assert [one.array.tolist() for one in tensors] == [
        [[b"approve"]],
        [[b"decline"]],
        [[b"approve"]],
    ]
    assert tensors[0] is tensors[2] is said(again, "decision")[0]
    scores = np.concatenate([one.array for one in said(first, "score")])
    assert scores[:, 0].tolist() == pytest.approx([0.1, 0.9, 0.2])


def test_requests_of_several_rows_share_what_is_all_alike(cache: TensorCache) -> None:
    """By number of rows; one with two values is made for itself."""
    outputs = {"decision": column(b"a", b"a", b"a", b"a", b"b", b"a")}
    one, two, mixed, alone = said(cache.respond(outputs, [0, 2, 3, 5, 6]), "decision")
    assert one.array.tolist() == [[b"a"], [b"a"]]
    assert mixed.array.tolist() == [[b"a"], [b"b"]]
    assert two is alone
    assert two.array.tolist() == [[b"a"]]
    later = said(cache.respond({"decision": column(b"a", b"a")}, [0, 2]), "decision")
    assert later == [one]


def test_values_of_a_row_are_not_cached(cache: TensorCache) -> None:
    """Of errors only that there is none; and of anything so many and no more."""
    outputs = {"error": column(b"amount: -1 is negative", b"")}
    first = said(cache.respond(outputs, [0, 1, 2]), "error")
    again = said(cache.respond(outputs, [0, 1, 2]), "error")
    assert first[0] is not again[0]
    assert first[1] is again[1]
    many = {"decision": column(b"a", b"b", b"c")}
    first = said(cache.respond(many, [0, 1, 2, 3]), "decision")
    again = said(cache.respond(many, [0, 1, 2, 3]), "decision")
    assert [one is two for one, two in zip(first, again, strict=True)] == [
        True,
        False,
        False,
    ]
    assert [one.array.tolist() for one in again] == [[[b"a"]], [[b"b"]], [[b"c"]]]


def test_a_cached_tensor_owns_its_memory(cache: TensorCache) -> None:
    """A batch that is written over later does not change it."""
    values = column(b"approve")
    cache.respond({"decision": values}, [0, 1])
    values[:] = b"decline"
    (again,) = said(cache.respond({"decision": column(b"approve")}, [0, 1]), "decision")
    assert again.array.tolist() == [[b"approve"]]

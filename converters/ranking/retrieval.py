"""Learn the weights of items for items, and write them as a graph of bounded size."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.ranking.candidates import CANDIDATES, RETRIEVAL_INPUTS, RETRIEVAL_OUTPUTS

OPSET = 17  # as the other graphs for Triton 24.10
IR_VERSION = 9

F32 = npt.NDArray[np.float32]


class Factors(msgspec.Struct, frozen=True, eq=False):
    """
    Weights of items for items, as a product of two factors.

    Attributes:
        history: Factors of the items in a history; float32 [I, D].
        candidates: Factors of the candidates; float32 [D, I].
    """

    history: F32
    candidates: F32

    def first(self, size: int) -> Factors:
        """Return the first factors, which are the best ones of that number."""
        return Factors(
            history=np.ascontiguousarray(self.history[:, :size]),
            candidates=np.ascontiguousarray(self.candidates[:size]),
        )


def ease_weights(gram: F32, *, ridge: float) -> F32:
    """
    Solve EASE (Steck 2019): the weights of items for items, with a diagonal of 0.

    Args:
        gram: X^T X of the user-item matrix; [I, I].
        ridge: Added to its diagonal.

    Returns:
        float32 [I, I]: row of the history, column of the candidate.
    """
    from scipy.linalg import lapack

    regular = gram.astype(np.float64, order="F")
    regular[np.diag_indices_from(regular)] += ridge
    factor, problem = lapack.dpotrf(regular, lower=1, overwrite_a=1)
    if problem:
        raise ArithmeticError(f"EASE: the matrix is not positive: {problem}")
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    lower = np.tril(inverse, -1)
    whole = lower + lower.T
    weights = whole / -np.diag(inverse)[None, :]
    return np.asarray(weights, np.float32)


def factorize(weights: F32, *, size: int, seed: int) -> Factors:
    """Approximate weights of items for items by two factors (truncated SVD)."""
    from sklearn.utils.extmath import randomized_svd

    size = min(size, len(weights))
    left, strength, right = randomized_svd(
        weights, n_components=size, n_iter=4, random_state=seed
    )
    root = np.sqrt(strength)
    return Factors(
        history=(left * root).astype(np.float32),
        candidates=(root[:, None] * right).astype(np.float32),
    )


def retrieval_graph(candidates: F32) -> bytes:
    """
    Write `retrieval.onnx`: user vector by item matrix, plus penalty, the best 200.

    Args:
        candidates: Factors of the candidates; float32 [D, I].

    Returns:
        A graph with inputs `user` FP32 [1, D] and `penalty` FP32 [1, I], and outputs
        `index` INT64 [1, C] and `score` FP32 [1, C] of the best, and `scores` FP32
        [1, I] of all items without the penalty.
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    size, items = candidates.shape
    count = min(CANDIDATES, items)
    user, penalty = RETRIEVAL_INPUTS
    index, score, scores = RETRIEVAL_OUTPUTS

    def tensor(name: str, kind: int, width: int) -> Any:
        return helper.make_tensor_value_info(name, kind, [1, width])

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [user, "items"], [scores]),
            helper.make_node("Add", [scores, penalty], ["allowed"]),
            helper.make_node("TopK", ["allowed", "count"], [score, index], axis=1),
        ],
        "retrieval",
        [
            tensor(user, TensorProto.FLOAT, size),
            tensor(penalty, TensorProto.FLOAT, items),
        ],
        [
            tensor(index, TensorProto.INT64, count),
            tensor(score, TensorProto.FLOAT, count),
            tensor(scores, TensorProto.FLOAT, items),
        ],
        [
            numpy_helper.from_array(np.ascontiguousarray(candidates), "items"),
            numpy_helper.from_array(np.asarray([count], np.int64), "count"),
        ],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="tollgate",
    )
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())

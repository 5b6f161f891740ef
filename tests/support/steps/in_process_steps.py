"""Both steps and a model of one line in this process, over a real Redis."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.steps.triton_classes import MetricFamily, Request, Response, Tensor
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.repository.releases.rendering import (
    decision_parameters,
    features_parameters,
)
from tollgate.repository.releases.served_versions import load_policy_of
from tollgate.schema import (
    CONTEXT,
    CONTEXT_KEY_VARIABLE,
    FEATURES,
    PROBABILITIES,
    STORE_URL_VARIABLE,
)
from tollgate.steps.decision_step import DecisionStep
from tollgate.steps.feature_step import FeatureStep
from tollgate.steps.step_journal import JOURNAL_URL_VARIABLE

NOW_US = 1_700_000_000_000_000
DEADLINE = {"store_deadline_ms": "5000"}


class Refusal:
    """An error of a request, in the place of Triton's."""

    INVALID_ARG, INTERNAL = "INVALID_ARG", "INTERNAL"

    def __init__(self, text: str, code: str) -> None:
        self.text, self.code = text, code


def stand_in() -> Any:
    """Make what the steps need of Triton's module."""
    triton: Any = types.ModuleType("triton_python_backend_utils")
    triton.MetricFamily = MetricFamily
    triton.Tensor = Tensor
    triton.InferenceResponse = Response
    triton.TritonError = Refusal
    triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    triton.TritonModelException = RuntimeError
    return triton


def request(*rows: tuple[Any, ...], **parameters: object) -> Request:
    """Make a request of rows: transaction, customer, terminal, amount, time, µs."""
    columns = list(zip(*rows, strict=True))
    names = ("transaction_id", "customer_id", "terminal_id", "amount", "event_time")
    kinds = (np.object_, np.object_, np.object_, np.float64, np.int64)
    return Request(
        {
            name: Tensor(name, np.array(column, kind)[:, None])
            for name, kind, column in zip(names, kinds, columns, strict=True)
        },
        json.dumps(parameters),
    )


def bought(name: str, **changes: Any) -> tuple[Any, ...]:
    """Make a row: a purchase of customer c at terminal m, all its own."""
    given = {"customer": "c", "terminal": "m", "amount": 12.5, "at_us": NOW_US}
    given |= changes
    ids = (name, given["customer"], given["terminal"])
    return (*(one.encode() for one in ids), given["amount"], given["at_us"])


class Pipeline:
    """
    The two steps, with a model between them that hangs on every feature.

    Args:
        features: Version directory of the feature step.
        policy: Version directory of the decision step.
        release: What answers say.
        parameters: Of the feature step.
    """

    def __init__(
        self,
        features: Path,
        policy: Path,
        *,
        release: str = "fraud-1",
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        spec = load_spec(features / SPEC_FILE)
        told = features_parameters(load_policy_of(policy, spec), "fraud")
        told |= {**DEADLINE, **(parameters or {})}
        self.features = FeatureStep()
        self.features.initialize(arguments(features, told))
        self.decision = DecisionStep()
        told = decision_parameters(release, spec, f"{spec.spec_hash:016x}")
        self.decision.initialize(arguments(policy, told))

    def answer(self, *requests: Request) -> list[Any]:
        """Answer a dynamic batch: per request rows of the answer, or its error."""
        first = self.features.execute(list(requests))
        between = [one for one in first if one.error is None]
        steps = []
        for one in between:
            tensors = {tensor.called: tensor for tensor in one.tensors}
            numbers = tensors[FEATURES].array
            fraud = np.abs(numbers.astype(np.float64)).sum(axis=1) % 97 / 97
            both = np.stack([1 - fraud, fraud], axis=1).astype(np.float32)
            tensors[PROBABILITIES] = Tensor(PROBABILITIES, both)
            steps.append(Request(tensors))
        decided = iter(self.decision.execute(steps) if steps else [])
        return [
            one.error.text if one.error is not None else answer_of(next(decided))
            for one in first
        ]

    def contexts(self, *requests: Request) -> Any:
        """Run the feature step alone: the context of all rows."""
        answers = self.features.execute(list(requests))
        packed = [
            tensor.array
            for one in answers
            for tensor in one.tensors
            if tensor.called == CONTEXT
        ]
        whole = np.ascontiguousarray(np.concatenate(packed))
        return whole.view(self.features._stage.dtype)[:, 0]

    def close(self) -> None:
        """End both steps, and write what they keep."""
        self.features.finalize()
        self.decision.finalize()


def answer_of(response: Response) -> list[tuple[Any, ...]]:
    """Take rows out of a response: decision, score's bits, codes, bits, error, name."""
    assert response.tensors is not None
    columns = {tensor.called: tensor.array[:, 0] for tensor in response.tensors}
    columns["score"] = columns["score"].view(np.uint32)
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


def arguments(directory: Path, parameters: Mapping[str, str]) -> dict[str, str]:
    """Make what Triton passes to `initialize`."""
    texts = {name: {"string_value": text} for name, text in parameters.items()}
    return {
        "model_config": json.dumps({"parameters": texts}),
        "model_name": directory.parent.name,
        "model_repository": str(directory.parent),
        "model_version": directory.name,
    }


def use(monkeypatch: pytest.MonkeyPatch, *, store_url: str, journal_url: str) -> None:
    """Put the stand-in where the steps look for Triton's; name store and journal."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in())
    monkeypatch.setenv(STORE_URL_VARIABLE, store_url)
    monkeypatch.setenv(CONTEXT_KEY_VARIABLE, "5e" * 32)
    monkeypatch.setenv(JOURNAL_URL_VARIABLE, journal_url)
    monkeypatch.delenv("TOLLGATE_SPOOL", raising=False)
    monkeypatch.delenv("TOLLGATE_JOURNAL_SPOOL", raising=False)

"""What a step says of a failure that it did not foresee."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tollgate.steps.triton import guarded

MARKER = "customer-4711"


class Backend:
    """Triton's classes for an error, which keep what they are given."""

    class TritonError(str):
        """An error: its words."""

        INTERNAL, INVALID_ARG = 1, 2

        def __new__(cls, text: str, code: int) -> Any:
            """Keep the words."""
            return super().__new__(cls, text)

    @staticmethod
    def InferenceResponse(*, error: str) -> str:
        """Answer with an error."""
        return error


def test_neither_answer_nor_log_repeats_what_an_exception_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kind and place of it and of its cause are in the log, and hashes of the words."""

    def fail(requests: Sequence[Any]) -> list[Any]:
        try:
            int(MARKER)
        except ValueError as exc:
            raise KeyError(MARKER) from exc
        return []

    answers = guarded(Backend, [1, 2], fail)
    assert len(answers) == 2
    assert answers[0].startswith("the step failed: KeyError; ")
    text = caplog.text
    assert MARKER not in text + "".join(answers)
    assert "a batch of 2 requests failed: KeyError" in text
    assert "caused by ValueError" in text
    assert "in fail" in text
    # Once for the batch and once for each of its requests, with the cause.
    assert text.count("its words hash to ") == 2 * 3


def test_a_request_that_fails_leaves_the_rest_of_its_batch_their_answers() -> None:
    """The batch is run again request by request."""

    def execute(requests: Sequence[Any]) -> list[Any]:
        return [10 // one for one in requests]

    answers = guarded(Backend, [1, 0, 5], execute)
    assert answers[0] == 10
    assert answers[2] == 2
    assert answers[1].startswith("the step failed: ZeroDivisionError; ")

"""Request decisions from any stage, one request after the other."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from clients.client import Client
from loadtests.baseline.json_bodies import json_bodies
from loadtests.journey.stages import Stage
from tollgate.errors import ServerError

_TIMEOUT_S = 10.0

Columns = Mapping[str, npt.NDArray[np.generic]]


class Answers(msgspec.Struct, frozen=True):
    """
    Decisions of a stage for N rows.

    Attributes:
        decision: approve, review or decline; N.
        score: Score of each; N.
        reason_codes: Reason codes of each, in ascending order; N.
    """

    decision: list[str]
    score: list[float]
    reason_codes: list[list[str]]


def request_decisions(stage: Stage, columns: Columns, *, rows: int = 1) -> Answers:
    """
    Request decisions.

    Args:
        stage: The stage to call.
        columns: Columns of the fraud product, N values each.
        rows: Rows per request; N is a multiple of it.

    Raises:
        ServerError: A request was refused.
    """
    answers = _by_grpc if stage.grpc else _by_http
    answered = answers(stage, columns, rows=rows)
    ordered = [sorted(codes) for codes in answered.reason_codes]
    return msgspec.structs.replace(answered, reason_codes=ordered)


def _by_grpc(stage: Stage, columns: Columns, *, rows: int) -> Answers:
    count = len(next(iter(columns.values())))
    decision: list[str] = []
    score: list[float] = []
    codes: list[list[str]] = []
    with Client(stage.url, timeout_s=_TIMEOUT_S) as client:
        for start in range(0, count, rows):
            part = {
                name: column[start : start + rows].tolist()
                for name, column in columns.items()
            }
            answer = client.decide(part)
            decision += answer.decision.tolist()
            score += answer.score.tolist()
            codes += [list(one) for one in answer.reason_codes]
    return Answers(decision, score, codes)


def _by_http(stage: Stage, columns: Columns, *, rows: int) -> Answers:
    path = "/decide" if rows == 1 else "/decide/batch"
    decision: list[str] = []
    score: list[float] = []
    codes: list[list[str]] = []
    connection = http.client.HTTPConnection(stage.url, timeout=_TIMEOUT_S)
    for body in json_bodies(columns, rows=rows):
        head = {"content-type": "application/json"}
        connection.request("POST", path, body=body.tobytes(), headers=head)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            problem = f"answered {answer.status}: {content[:200].decode()}"
            raise ServerError(stage.name, problem)
        answered: dict[str, Any] = msgspec.json.decode(content)
        alone = rows == 1
        decision += [answered["decision"]] if alone else answered["decision"]
        score += [answered["score"]] if alone else answered["score"]
        codes += [answered["reason_codes"]] if alone else answered["reason_codes"]
    connection.close()
    return Answers(decision, score, codes)

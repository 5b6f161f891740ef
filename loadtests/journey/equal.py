"""Check that all stages give the same answers; nothing is measured before they do."""

from __future__ import annotations

import http.client
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.baseline.json_bodies import json_bodies
from loadtests.journey.stages import OWN_LAYOUT, Say, Stage, run_stages, set_parameter
from tollgate.errors import ServerError
from tollgate.load.store_contents import HISTORY_DAYS, served_spec, simulated_history
from tollgate.load.traffic import Traffic, traffic_of
from tollgate.schema import AMOUNT, STORE_DEADLINE_PARAMETER, TRANSACTION_ID
from tollgate.store.id_lists import list_key
from tollgate_client import Client

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
    path = "/decide" if rows == 1 else stage.batch_path
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
        answered: Any = msgspec.json.decode(content)
        if isinstance(answered, dict) and rows > 1:  # a column for each output
            decision += answered["decision"]
            score += answered["score"]
            codes += answered["reason_codes"]
            continue
        for one in answered if isinstance(answered, list) else [answered]:
            decision.append(one["decision"])
            score.append(one["score"])
            codes.append(one["reason_codes"])
    connection.close()
    return Answers(decision, score, codes)


# XGBoost adds up its trees in another order than onnxruntime: the last bits of a
# float32 differ, which is some 2e-7 of a probability.
MOST_APART = 1e-6
STOLEN_LIST = "stolen_cards"
_ROWS = 16  # per request, where a stage takes several
_EVERY = 8  # of the checked purchases: a new customer, a large amount, a stolen card
_CUSTOMERS, _PATIENCE_MS = 200, 2_000
_LARGE, _NEW = 1_234.56, b"N"


class Agreement(msgspec.Struct, frozen=True):
    """
    Result of the comparison.

    Attributes:
        rows: Purchases that every stage decided.
        decisions: Numbers of approved, reviewed and declined purchases.
        apart: Largest difference of a score from the last stage's.
    """

    rows: int
    decisions: dict[str, int]
    apart: float


def check(
    stages: Mapping[str, Stage], traffic: Traffic, *, first: int, rows: int
) -> Agreement:
    """
    Let every stage decide the same purchases, as single rows and then in batches.

    Args:
        stages: All stages, over equal stores.
        first: Index of the first purchase that was not sent yet.
        rows: Number of purchases; a multiple of 16. As many again are sent sixteen a
            request.

    Raises:
        ServerError: One of them made another decision.
    """
    columns = _special(traffic.columns(first, rows))
    answers = {name: request_decisions(one, columns) for name, one in stages.items()}
    apart = _compare(answers, columns)
    columns = traffic.columns(first + rows, rows)
    several = {
        name: request_decisions(one, columns, rows=1 if name == "naive" else _ROWS)
        for name, one in stages.items()
    }
    apart = max(apart, _compare(several, columns))
    names, counts = np.unique(
        np.array(next(iter(answers.values())).decision), return_counts=True
    )
    decisions = dict(zip(names.tolist(), counts.tolist(), strict=True))
    return Agreement(rows=2 * rows, decisions=decisions, apart=apart)


def prove(
    names: tuple[str, ...], *, repository: Path, folder: Path, rows: int, say: Say
) -> Agreement:
    """
    Start stages over a small history, and let them decide the same purchases.

    Tollgate's store deadline is lifted for it: on a busy machine it would use last
    known values on purpose, and such an answer differs.

    Raises:
        ServerError: One of them made another decision.
    """
    copy = with_store_deadline(repository, folder / "patient", ms=_PATIENCE_MS)
    history = simulated_history(
        served_spec(repository), customers=_CUSTOMERS, terminals=400, days=HISTORY_DAYS
    )
    traffic = traffic_of(history, days=HISTORY_DAYS)
    with run_stages(names, history, repository=copy, folder=folder, say=say) as stages:
        report_stolen(stages, traffic, first=0)
        say("comparing answers")
        return check(stages, traffic, first=0, rows=rows)


def with_store_deadline(repository: Path, copy: Path, *, ms: int) -> Path:
    """Return a copy of a repository whose feature step waits so long for the store."""
    shutil.copytree(repository, copy)
    set_parameter(copy / "fraud_features", STORE_DEADLINE_PARAMETER, str(ms))
    return copy


def report_stolen(stages: Mapping[str, Stage], traffic: Traffic, *, first: int) -> None:
    """Add a customer of the checked purchases to the list of every stage."""
    import redis

    customer = traffic.columns(first, 1)["customer_id"][0]
    for stage in stages.values():
        plain = STOLEN_LIST.encode()
        own = stage.name in OWN_LAYOUT
        key = plain if own else list_key("fraud", STOLEN_LIST)
        with redis.Redis.from_url(stage.store_url) as store:
            store.sadd(key, bytes(customer))


def _special(columns: Columns) -> Columns:
    """Make some purchases large, and some of unknown customers."""
    customer = columns["customer_id"].copy()
    amount = np.array(columns[AMOUNT], np.float64)
    width = customer.dtype.itemsize
    fresh = [_NEW + b"%0*d" % (width - 1, row) for row in range(len(customer))]
    customer[1::_EVERY] = np.array(fresh, customer.dtype)[1::_EVERY]
    amount[2::_EVERY] = _LARGE
    amount[1 :: 2 * _EVERY] = _LARGE / 4
    customer[3::_EVERY] = customer[0]
    return {**columns, "customer_id": customer, AMOUNT: amount}


def _compare(answers: Mapping[str, Answers], columns: Columns) -> float:
    """Compare all stages with the last; return the largest difference of scores."""
    *others, (judge, wanted) = answers.items()
    largest = 0.0
    for name, one in others:
        apart = np.abs(np.array(one.score) - np.array(wanted.score))
        other = _differing(one.decision, wanted.decision)
        other |= _differing(one.reason_codes, wanted.reason_codes)
        wrong = np.flatnonzero(other | (apart > MOST_APART))
        if len(wrong):
            row = int(wrong[0])
            raise ServerError(
                name,
                f"decided {len(wrong)} of {len(apart)} purchases otherwise than "
                f"{judge}, the first {bytes(columns[TRANSACTION_ID][row]).decode()}: "
                f"{_words(one, row)} instead of {_words(wanted, row)}",
            )
        largest = max(largest, float(apart.max()))
    return largest


def _differing(
    one: Sequence[object], other: Sequence[object]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([a != b for a, b in zip(one, other, strict=True)])


def _words(answers: Answers, row: int) -> str:
    codes = "|".join(answers.reason_codes[row]) or "no reason"
    return f"{answers.decision[row]} ({answers.score[row]:.7f}, {codes})"

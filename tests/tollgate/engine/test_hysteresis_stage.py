"""Hysteresis of whole batches: permuted, sent again, dry, bad, over many machines."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy.hysteresis_oracle import Machine
from tollgate.engine.hysteresis_stage import (
    EVIDENCE_FIELDS,
    AnsweredDecisions,
    HysteresisStage,
    decide_in_sequence,
    decide_recorded,
    recorded_levels,
)
from tollgate.policy import PolicyDecisions
from tollgate.policy.hysteresis import Hysteresis
from tollgate.schema import Degraded, context_dtype
from tollgate.store.memory_store import MemoryStore

LAYOUT = context_dtype(("machine",))
SERVICE = 1 << 3
SETTINGS = Hysteresis("machine", 4, 2, 6, 9, SERVICE)
_LEVELS = st.integers(0, 2)
Row = tuple[bytes, bytes, int, int]  # id, machine, time, level


def context_of(rows: list[Row], *, dry: bool = False) -> Any:
    """Fill the fields of a context that hysteresis reads."""
    context = np.zeros(len(rows), LAYOUT)
    for at, (name, machine, time_us, _) in enumerate(rows):
        for field, one in (("transaction_id", name), ("machine_id", machine)):
            context[field][at] = one
            context[f"{field}_length"][at] = len(one)
        context["event_time_us"][at] = time_us
    context["dry_run"] = dry
    return context


def decided(levels: list[int], *, rules: int = 0) -> PolicyDecisions:
    """Make decisions of a policy; each has a code of its own."""
    codes = np.empty(len(levels), np.object_)
    codes[:] = [b"CODE%d" % level if level else b"" for level in levels]
    return PolicyDecisions(
        decision=np.array(levels, np.uint8),
        score=np.zeros(len(levels), np.float32),
        reason_codes=codes,
        degraded=np.zeros(len(levels), np.uint32),
        rules=np.full(len(levels), rules, np.uint64),
        segment=np.zeros(len(levels), np.uint8),
    )


def opened() -> HysteresisStage:
    """Open a stage over an empty store in memory."""
    return HysteresisStage(SETTINGS, product="plant", store=MemoryStore())


def apply(
    stage: HysteresisStage, rows: list[Row], *, dry: bool = False, **more: Any
) -> AnsweredDecisions:
    """Apply a batch of one request."""
    levels = [level for *_, level in rows]
    return stage.apply(
        context_of(rows, dry=dry),
        decided(levels, **more),
        bounds=[0, len(rows)],
        skipped=None,
    )


def said(found: AnsweredDecisions) -> list[tuple[int, str]]:
    """Take the level and the last code of each row."""
    return [
        (level, text.decode().rpartition("|")[2] if b"CODE" not in text[-5:] else "")
        for level, text in zip(
            found.decision.tolist(), found.reason_codes.tolist(), strict=True
        )
    ]


Plant = dict[bytes, Machine]


def read(plant: Plant, rows: list[Row]) -> list[tuple[int, str]]:
    """Decide a batch by the plain rules: in the order of (time, hash of the id)."""

    def place(at: int) -> tuple[int, bytes]:
        return rows[at][2], hashlib.blake2b(rows[at][0], digest_size=8).digest()

    found: dict[int, tuple[int, str]] = {}
    for at in sorted(range(len(rows)), key=place):
        _, machine, time_us, level = rows[at]
        one = plant.setdefault(
            machine, Machine(of=4, at_least=2, hold_us=6, cool_down_us=9)
        )
        answered, code = one.read(time_us, place(at)[1], level)
        found[at] = answered, "" if code == "NONE" else code
    return [found[at] for at in range(len(rows))]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, list[Row]]]:
    """Draw batches of readings; some are dry, some were sent before."""
    clock, number, sent = 100, 0, []
    history: list[tuple[str, list[Row]]] = []
    for _ in range(draw(st.integers(1, 8))):
        batch: list[Row] = []
        for _ in range(draw(st.integers(1, 6))):
            clock += draw(st.sampled_from([0, 0, 1, 3, 12]))
            late = draw(st.sampled_from([0, 0, 0, 1, 8]))
            machine = draw(st.sampled_from([b"a", b"b"]))
            number += 1
            batch.append((b"r%d" % number, machine, clock - late, draw(_LEVELS)))
        kind = draw(st.sampled_from(["new", "new", "new", "dry"]))
        history.append((kind, batch))
        if kind == "new":
            sent.append(batch)
            if draw(st.booleans()):
                again = draw(st.permutations(draw(st.sampled_from(sent))))
                history.append(("again", again))
    return history


@settings(max_examples=150, deadline=None, derandomize=True)
@given(histories(), st.randoms(use_true_random=False))
def test_batches_answer_as_the_plain_rules(
    history: list[tuple[str, list[Row]]], chance: Any
) -> None:
    """However a batch is permuted; a dry one leaves nothing, a repeated one, too."""
    stage, turned, plant = opened(), opened(), {}
    for kind, batch in history:
        wanted = read(copy.deepcopy(plant) if kind == "dry" else plant, batch)
        found = apply(stage, batch, dry=kind == "dry")
        assert said(found) == wanted
        order = list(range(len(batch)))
        chance.shuffle(order)
        other = apply(turned, [batch[at] for at in order], dry=kind == "dry")
        assert said(other) == [wanted[at] for at in order]
        assert_decided_again(batch, found)


def assert_decided_again(batch: list[Row], found: AnsweredDecisions) -> None:
    """Decide a batch again from what its records have."""
    fields = dict(zip(EVIDENCE_FIELDS, found.evidence.T, strict=True))
    levels = [level for *_, level in batch]
    again = decide_recorded(
        decided(levels), fields, settings=SETTINGS, degraded=found.degraded
    )
    assert again.decision.tolist() == found.decision.tolist()
    assert again.reason_codes.tolist() == found.reason_codes.tolist()
    assert again.degraded.tolist() == found.degraded.tolist()
    assert recorded_levels(fields).tolist() == levels


def rows_of(levels: str, *, machine: bytes = b"m") -> list[Row]:
    """Make readings of one machine."""
    return [
        (b"%b%d" % (machine, at), machine, at, int(one))
        for at, one in enumerate(levels)
    ]


def test_rows_in_maintenance_do_not_count() -> None:
    """They have the policy's level, and end what was before."""
    stage, rows = opened(), rows_of("11222111")
    assert said(apply(stage, rows[:2])) == [(0, "UNCONFIRMED"), (1, "RAISED")]
    served = apply(stage, rows[2:5], rules=SERVICE | 1)
    assert said(served) == [(2, "")] * 3
    assert not served.degraded.any()
    assert_decided_again(rows[2:5], served)
    found = said(apply(stage, rows[5:]))
    assert found == [(0, "UNCONFIRMED"), (1, "RAISED"), (1, "")]


def test_skipped_rows_do_not_count() -> None:
    """Such as bad ones, and those with a stored decision."""
    stage, rows = opened(), rows_of("1111")
    found = stage.apply(
        context_of(rows),
        decided([1] * 4),
        bounds=[0, 1, 4],
        skipped=np.array([True, False, True, False]),
    )
    assert said(found) == [(1, ""), (0, "UNCONFIRMED"), (1, ""), (1, "RAISED")]


def test_a_dry_request_sees_the_writes_of_its_batch_but_no_other_dry_one() -> None:
    """Each dry request continues the states that the batch leaves."""
    rows = [(b"%d" % at, b"m", at, 1) for at in range(4)]
    context = context_of(rows)
    context["dry_run"] = [1, 0, 1, 1]
    stage = opened()
    found = stage.apply(context, decided([1] * 4), bounds=[0, 1, 2, 4], skipped=None)
    # Time 0 is older than that of the write, and one of the newest four.
    assert said(found) == [(1, "RAISED"), (0, "UNCONFIRMED"), (1, "RAISED"), (1, "")]
    assert said(apply(stage, [(b"new", b"m", 9, 0)])) == [(0, "")]


def test_a_damaged_state_marks_the_rows() -> None:
    """They are answered from an empty state, and say so."""
    store = MemoryStore()
    stage = HysteresisStage(SETTINGS, product="plant", store=store)
    key = b"tollgate:plant:hysteresis:machine:m"
    store.flush([], extra_commands=[(b"SET", key, b"junk")])
    found = apply(stage, rows_of("11"))
    assert said(found) == [(0, "UNCONFIRMED"), (1, "RAISED")]
    assert (found.degraded == Degraded.HYSTERESIS_UNREAD).all()
    assert not apply(stage, rows_of("0", machine=b"other")).degraded.any()


def test_a_sequence_begins_with_empty_states() -> None:
    """In the order of time, whatever that of the rows; without a store."""
    rows = rows_of("0110201", machine=b"x") + rows_of("2000", machine=b"y")
    order = np.random.default_rng(3).permutation(len(rows))
    turned = [rows[at] for at in order.tolist()]
    found = decide_in_sequence(
        decided([level for *_, level in turned]),
        settings=SETTINGS,
        machines=[machine for _, machine, _, _ in turned],
        ids=[name for name, *_ in turned],
        time_us=np.array([time_us for _, _, time_us, _ in turned]),
    )
    assert said(found) == [read({}, rows)[at] for at in order.tolist()]

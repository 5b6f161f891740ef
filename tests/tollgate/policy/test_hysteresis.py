"""Hysteresis: answered levels of sequences of readings, and the section's checks."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy.hysteresis_oracle import Machine
from tollgate.errors import PolicyError
from tollgate.policy import Policy, load_policy
from tollgate.policy.hysteresis import (
    EVIDENCE,
    MAINTENANCE,
    Code,
    Hysteresis,
    Kind,
    answer,
    apply_readings,
    unpack_evidence,
)

S = 1_000_000
THREE_OF_FIVE = Hysteresis("machine", 5, 3, 60 * S, 600 * S, 0)

Reading = tuple[int, bytes, int]


def run(
    readings: list[Reading], config: Hysteresis, state: bytes | None = None
) -> tuple[bytes | None, list[tuple[int, str]]]:
    """Apply readings; return the state, and level and code of each."""
    packed = b"".join(struct.pack("<q8sB", *one) for one in readings)
    state, found = apply_readings(state, packed, config)
    columns = np.frombuffer(found, np.int64).reshape(-1, 3)
    return state, [(one.answered, one.code.name) for _, one in unpack_evidence(columns)]


def readings_of(levels: str, *, step_s: int = 10) -> list[Reading]:
    """Make one reading per digit, some seconds apart."""
    return [
        (at * step_s * S, b"%08d" % at, int(level)) for at, level in enumerate(levels)
    ]


def said(levels: str, config: Hysteresis = THREE_OF_FIVE, **more: Any) -> list[str]:
    """Write each answer as its level and the first letter of its code."""
    found = run(readings_of(levels, **more), config)[1]
    return [f"{level}{'' if code == 'NONE' else code[0]}" for level, code in found]


def test_three_of_five_raise_and_a_minute_holds() -> None:
    """Onset at the third; it holds while the minute or n of m does, then cools down."""
    assert said("1101000000") == [
        *("0U", "0U", "0", "1R"),  # at 30 s, three of four
        *("1H", "1H", "1H", "1H", "1H"),  # mild, until 80 s
        "0",  # at 90 s the minute is over
    ]
    assert said("111" + "0" * 8 + "111")[-1] == "0C"
    assert said("111" + "0" * 8 + "111", step_s=100)[-4:] == ["0", "0U", "0U", "1R"]


def test_levels_rise_at_once_and_fall_after_the_minimum_duration() -> None:
    """A higher level that enough readings reach is a new onset."""
    assert said("1112220000000000") == [
        *("0U", "0U", "1R", "1U", "1U", "2R"),  # from 50 s on
        *("2H", "2H", "2H", "2H", "2H"),  # to 100 s
        *("0", "0", "0", "0", "0"),
    ]
    two = Hysteresis("machine", 3, 2, 30 * S, 0, 0)
    assert said("221111000", two) == [
        *("0U", "2R", "2H", "2H", "1", "1"),
        *("1H", "0", "0"),  # the lower level began with the first
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Hysteresis, list[Reading]]:
    """Draw settings, and readings with late, equal, repeated ones."""
    of = draw(st.integers(1, 6))
    config = Hysteresis(
        "machine",
        of,
        draw(st.integers(1, of)),
        draw(st.sampled_from([0, 1, 5, 20])),
        draw(st.sampled_from([0, 1, 7, 30])),
        0,
    )
    count = draw(st.integers(0, 60))
    readings, clock = [], 1_000
    for _ in range(count):
        clock += draw(st.sampled_from([0, 0, 1, 2, 5, 40]))
        back = draw(st.sampled_from([0, 0, 0, 1, 3, 9]))
        name = bytes([0x7F, draw(st.integers(0, 40)), 0xFF, 0, 0, 0, 0, 0x80])
        level = draw(st.sampled_from([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, MAINTENANCE]))
        readings.append((clock - back, name, level))
    return config, readings


@settings(max_examples=400, deadline=None, derandomize=True)
@given(cases(), st.integers(1, 9))
def test_every_answer_is_that_of_the_plain_rules(
    case: tuple[Hysteresis, list[Reading]], size: int
) -> None:
    """In calls of any size; the evidence decides again; the state stays small."""
    config, readings = case
    machine = Machine(
        of=config.of,
        at_least=config.at_least,
        hold_us=config.hold_us,
        cool_down_us=config.cool_down_us,
    )
    wanted = []
    for one in readings:
        if one[2] == MAINTENANCE:
            machine.serve(one[0])
        wanted.append((0, "NONE") if one[2] == MAINTENANCE else machine.read(*one))
    state: bytes | None = None
    found = []
    for at in range(0, len(readings), size):
        part = readings[at : at + size]
        packed = b"".join(struct.pack("<q8sB", *one) for one in part)
        state, evidence = apply_readings(state, packed, config)
        columns = np.frombuffer(evidence, np.int64).reshape(-1, 3)
        for (raw, one), (_, _, level) in zip(
            unpack_evidence(columns), part, strict=True
        ):
            assert raw == level % MAINTENANCE
            assert answer(raw, one, config) == (one.answered, one.code)
            found.append((one.answered, one.code.name))
    assert found == wanted
    assert state is None or len(state) <= 28 + 17 * config.of


def test_an_alarm_has_enough_readings_lasts_and_is_followed_by_quiet() -> None:
    """Counted over a long run of readings in order, without the function's words."""
    drawn = np.random.default_rng(11).choice(3, 4_000, p=[0.75, 0.15, 0.1])
    config = Hysteresis("machine", 5, 3, 45 * S, 100 * S, 0)
    readings = readings_of("".join(map(str, drawn.tolist())))
    levels = [level for level, _ in run(readings, config)[1]]
    ends = onsets = 0
    since_us = ended_us = None
    for at, level in enumerate(levels):
        time_us, before = readings[at][0], levels[at - 1] if at else 0
        if level > before:
            onsets += 1
            assert sum(drawn[max(0, at - 4) : at + 1] >= level) >= 3
            assert before or ended_us is None or time_us >= ended_us + 100 * S
            since_us = time_us
        if level < before:
            ends += 1
            assert since_us is not None
            assert time_us >= since_us + 45 * S
            ended_us = time_us if level == 0 else ended_us
    assert onsets > 30
    assert ends > 30


def test_a_repeated_reading_has_the_same_answer_and_changes_nothing() -> None:
    """Whatever came in between, and whatever its level is now."""
    readings = readings_of("11100")
    state, answers = run(readings, THREE_OF_FIVE)
    for (time_us, name, level), wanted in zip(readings, answers, strict=True):
        again = run([(time_us, name, 2 - level)], THREE_OF_FIVE, state)
        assert again == (state, [wanted])


def test_equal_instants_follow_the_bytes_of_the_hash() -> None:
    """As unsigned bytes: a batch in that order needs no other."""
    names = [b"\x00" * 8, b"\x7f" + b"\xff" * 7, b"\x80" * 8, b"\xff" * 8]
    one = Hysteresis("machine", 1, 1, 10 * S, 0, 0)
    state = run([(5, names[2], 1)], one)[0]
    for name, code in zip(names, ("LATE", "LATE", "RAISED", "HELD"), strict=True):
        assert run([(5, name, 0)], one, state)[1][0][1] == code


def test_maintenance_ends_an_alarm_and_forgets_what_was_before() -> None:
    """Without a cool-down; a row of before that comes later does not count."""
    state, found = run(readings_of("1111"), THREE_OF_FIVE)
    assert found[-1] == (1, "NONE")
    served = (35 * S, b"service.", MAINTENANCE + 2)
    state, found = run([served], THREE_OF_FIVE, state)
    assert found == [(2, "NONE")]
    assert run([served], THREE_OF_FIVE, state)[0] == state
    later = [(at * S, b"later %d" % at + b"\0", 1) for at in (40, 41, 34, 42)]
    _, found = run(later, THREE_OF_FIVE, state)
    assert found == [
        *((0, "UNCONFIRMED"), (0, "UNCONFIRMED")),
        *((0, "LATE"), (1, "RAISED")),
    ]


def test_a_row_of_maintenance_that_comes_late_leaves_newer_readings() -> None:
    """And an alarm that began after it."""
    state, found = run(readings_of("01110"), THREE_OF_FIVE)
    assert found[-1] == (1, "HELD")
    for time_s, answers in ((15, [(1, "HELD")]), (30, [(0, "NONE")])):
        served = (time_s * S, b"service.", MAINTENANCE)
        after, _ = run([served], THREE_OF_FIVE, state)
        assert run([(41 * S, b"later...", 0)], THREE_OF_FIVE, after)[1] == answers


def test_a_damaged_state_is_replaced_and_reported() -> None:
    """Cut, of another version, or empty: as without one."""
    readings = readings_of("11")
    good, _ = run(readings, THREE_OF_FIVE)
    assert good is not None
    for bad in (good[:-1], b"\x02" + good[1:], b""):
        packed = struct.pack("<q8sB", *readings[0])
        state, evidence = apply_readings(bad, packed, THREE_OF_FIVE)
        assert state == run(readings[:1], THREE_OF_FIVE)[0]
        ((_, one),) = unpack_evidence(np.frombuffer(evidence, np.int64)[None, :])
        assert one.damaged
        assert one.kind is Kind.COUNTED


def test_a_smaller_window_drops_the_oldest() -> None:
    """The state of an earlier policy is used as far as it goes."""
    state, _ = run(readings_of("11111"), THREE_OF_FIVE)
    smaller = Hysteresis("machine", 2, 2, 0, 0, 0)
    state, found = run([(100 * S, b"new-one.", 0)], smaller, state)
    assert found == [(0, "NONE")]
    assert state is not None
    assert len(state) == 28 + 2 * 17
    assert EVIDENCE.itemsize == 24
    assert max(Code) < 8


GOOD = {
    "entity": "machine",
    "of": 5,
    "at_least": 3,
    "hold": "60s",
    "cool_down": "10m",
    "maintenance": "serviced",
}
OWN = ("MODEL_UNAVAILABLE", "SCORE_REVIEW", "SCORE_DECLINE", "MAINTENANCE")
CODES = ("RAISED", "HELD", "UNCONFIRMED", "COOLING_DOWN", "LATE")


def load(folder: Path, section: dict[str, Any], **keys: Any) -> Policy:
    """Compile a policy with this section."""
    doc = {
        "version": 1,
        "product": "toy",
        "labels": ["fine", "broken"],
        "score": "broken",
        "thresholds": {"review": 0.5, "decline": 0.9},
        "fallback": {"model_output": "review"},
        "rules": [
            {
                "name": "hot",
                "owner": "me",
                "when": {"f": {"ge": 5}},
                "at_least": "review",
                "code": "MAINTENANCE",
            },
            {
                "name": "serviced",
                "owner": "me",
                "when": {"f": {"lt": 0}},
                "at_most": "approve",
                "code": "MAINTENANCE",
            },
        ],
        "reasons": dict.fromkeys(OWN + CODES, "a text"),
        "hysteresis": section,
        **keys,
    }
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(doc, sort_keys=False))
    return load_policy(
        path, feature_names=["f"], id_names=["transaction_id", "machine_id"]
    )


def test_the_section_is_compiled(tmp_path: Path) -> None:
    """Times in µs; the rule of maintenance as its bit."""
    assert load(tmp_path, GOOD).hysteresis == Hysteresis(
        "machine", 5, 3, 60 * S, 600 * S, 0b10
    )
    short = {"entity": "machine", "of": 2, "at_least": 2}
    reasons = dict.fromkeys(OWN + CODES[:3] + CODES[4:], "text")
    found = load(tmp_path, short, reasons=reasons).hysteresis
    assert found == Hysteresis("machine", 2, 2, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"entity": "plant"}, "hysteresis.entity: 'plant' is no entity; machine"),
        ({"at_least": 6}, "hysteresis.at_least: 6 is not within 1 … 5"),
        ({"at_least": 0}, "hysteresis.at_least: 0 is not within 1 … 5"),
        ({"of": 33}, "hysteresis.of: 33 is not within 1 … 32"),
        ({"hold": "soon"}, "hysteresis.hold: 'soon' is no time such as 60s"),
        ({"cool_down": "0s"}, "hysteresis.cool_down: '0s' is no time such as 60s"),
        ({"hold": "31d"}, "hysteresis.hold: 31d is more than 30d"),
        ({"maintenance": "later"}, "hysteresis.maintenance: 'later' is no rule; hot"),
        ({"maintenance": "hot"}, "the rule hot has no at_most"),
        ({"window": 3}, "unknown field `window`"),
    ],
)
def test_a_section_without_a_meaning_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """By line and key."""
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, GOOD | change)
    assert words in str(caught.value)
    assert "line " in caught.value.where


def test_a_section_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    """One reading is enough, and nothing holds."""
    section = {"entity": "machine", "of": 4, "at_least": 1}
    reasons = dict.fromkeys(OWN + CODES[:3] + CODES[4:], "text")
    with pytest.raises(PolicyError, match="changes nothing"):
        load(tmp_path, section, reasons=reasons)


def test_codes_need_a_text_and_belong_to_hysteresis(tmp_path: Path) -> None:
    """Its codes are those of no rule, and its bit has no meaning before it."""
    with pytest.raises(PolicyError, match="no text for RAISED"):
        load(tmp_path, GOOD, reasons=dict.fromkeys(OWN, "text"))
    rule = {"name": "serviced", "owner": "me", "when": {"f": {"ge": 1}}}
    rules = [rule | {"at_most": "approve", "code": "HELD"}]
    reasons = dict.fromkeys(OWN[:3] + CODES, "text")
    with pytest.raises(PolicyError, match="HELD is a code of hysteresis"):
        load(tmp_path, GOOD, rules=rules, reasons=reasons)
    with pytest.raises(PolicyError, match="is set after the policy"):
        load(tmp_path, GOOD, degraded={"HYSTERESIS_UNREAD": "none"})

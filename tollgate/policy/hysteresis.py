"""
Define hysteresis: how the raw levels of a machine's readings become answered levels.

A level above 0 is answered when enough of the newest readings reach it; it then stays
for a minimum duration, and after it ended no new one begins during the cool-down. Every
time is the time of a reading, never that of a clock. docs/policy.md describes the keys,
docs/contract.md the bytes of the state.

`apply_readings` is the definition. tollgate/store/hysteresis.lua does the same inside
Redis, byte by byte.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.policy_document import Document, RawHysteresis, duration_s

I64 = npt.NDArray[np.int64]

MOST_READINGS = 32
_MOST_S = 30 * 86_400  # of hold and of cool_down

READING = np.dtype([("time_us", "<i8"), ("id_hash", "V8"), ("level", "u1")])
MAINTENANCE = 4  # added to the level of a row that is no reading
# Report of the function on a reading; the journal's record has it.
EVIDENCE = np.dtype(
    [("facts", "<i8"), ("since_onset_us", "<i8"), ("since_end_us", "<i8")]
)

STATE_VERSION = 1
NEVER = -(2**63)  # end of the last alarm, or maintenance, where there was none
STATE_HEAD = np.dtype(
    [
        ("version", "u1"),
        ("level", "u1"),
        ("readings", "u1"),
        ("pad", "u1"),
        ("onset_us", "<i8"),
        ("end_us", "<i8"),
        ("maintenance_us", "<i8"),
    ]
)
_HEAD = struct.Struct("<BBBxqqq")  # the fields of STATE_HEAD
_READING = struct.Struct("<q8sB")  # time, hash, level
_EVIDENCE = struct.Struct("<qqq")
_SETTINGS = struct.Struct("<IIqqI")
_NONE_US = -1  # instead of a time since what never was


class Code(enum.IntEnum):
    """Effect of hysteresis on a reading; its name is the reason code."""

    NONE = 0
    RAISED = 1
    HELD = 2
    UNCONFIRMED = 3
    COOLING_DOWN = 4
    LATE = 5


class Kind(enum.IntEnum):
    """How a reading met the state."""

    SKIPPED = 0
    COUNTED = 1
    REPEATED = 2
    LATE = 3


# Places of the numbers in `facts`: the value of each place's 1, and its number of
# values.
_LEVEL, _ANSWERED, _CODE, _KIND = (1, 4), (4, 4), (16, 8), (128, 8)
_BEFORE, _ONES, _TWOS, _DAMAGED = (
    (1 << 10, 4),
    (1 << 12, 64),
    (1 << 18, 64),
    (1 << 24, 2),
)


class Hysteresis(msgspec.Struct, frozen=True):
    """
    The section `hysteresis` of a policy, compiled.

    Attributes:
        entity: Entity of the machines.
        of: Number of newest readings that a state holds; 1 to MOST_READINGS.
        at_least: How many of them must reach a level.
        hold_us: Shortest time from the onset of a level to its end.
        cool_down_us: Shortest time from the end of the last level to the next onset.
        maintenance: Bits of the rules whose rows do not count.
    """

    entity: str
    of: int
    at_least: int
    hold_us: int
    cool_down_us: int
    maintenance: int

    def packed(self, ttl_s: int) -> bytes:
        """Pack what the Lua function must know, with a value's time to live."""
        return _SETTINGS.pack(
            self.of, self.at_least, self.hold_us, self.cool_down_us, ttl_s
        )


def unpack_settings(packed: bytes) -> tuple[Hysteresis, int]:
    """Unpack the result of `Hysteresis.packed`; entity and maintenance are unknown."""
    of, at_least, hold_us, cool_down_us, ttl_s = _SETTINGS.unpack(packed)
    return Hysteresis("", of, at_least, hold_us, cool_down_us, 0), ttl_s


class Evidence(msgspec.Struct, frozen=True):
    """
    The inputs of one decision, except for the raw level.

    Attributes:
        kind: How the reading met the state.
        answered, code: What was answered.
        before: Level of the machine before the reading.
        ones, twos: Number of other newest readings that reach level 1, and level 2.
        since_onset_us: Time since the level's onset, µs; -1 without a level.
        since_end_us: Time since the last level ended, µs; -1 if none did.
        damaged: True if the state could not be read, and was replaced.
    """

    kind: Kind
    answered: int = 0
    code: Code = Code.NONE
    before: int = 0
    ones: int = 0
    twos: int = 0
    since_onset_us: int = _NONE_US
    since_end_us: int = _NONE_US
    damaged: bool = False


def pack_evidence(one: Evidence, *, level: int) -> bytes:
    """Pack the evidence of a reading with its raw level."""
    parts = (
        (level, _LEVEL),
        (one.answered, _ANSWERED),
        (one.code, _CODE),
        (one.kind, _KIND),
        (one.before, _BEFORE),
        (one.ones, _ONES),
        (one.twos, _TWOS),
        (one.damaged, _DAMAGED),
    )
    facts = sum(value * weight for value, (weight, _) in parts)
    return _EVIDENCE.pack(facts, one.since_onset_us, one.since_end_us)


def kinds_of(columns: I64) -> I64:
    """
    Return the kind of each row's evidence; int64 [N].

    Args:
        columns: The fields of EVIDENCE; int64 [N, 3].
    """
    weight, values = _KIND
    found: I64 = columns[:, 0] // weight % values
    return found


def unpack_evidence(columns: I64) -> Iterator[tuple[int, Evidence]]:
    """
    Unpack the raw level and the evidence of each row.

    Args:
        columns: The fields of EVIDENCE; int64 [N, 3].

    Raises:
        ValueError: A number has no meaning.
    """
    for facts, since_onset_us, since_end_us in columns.tolist():

        def part(place: tuple[int, int], facts: int = facts) -> int:
            weight, values = place
            return int(facts // weight % values)

        yield (
            part(_LEVEL),
            Evidence(
                kind=Kind(part(_KIND)),
                answered=part(_ANSWERED),
                code=Code(part(_CODE)),
                before=part(_BEFORE),
                ones=part(_ONES),
                twos=part(_TWOS),
                since_onset_us=since_onset_us,
                since_end_us=since_end_us,
                damaged=bool(part(_DAMAGED)),
            ),
        )


def answer(level: int, given: Evidence, settings: Hysteresis) -> tuple[int, Code]:
    """
    Return the answered level of a reading, and the code for it.

    Args:
        level: Its raw level.
        given: Its evidence; for a counted reading, `answered` and `code` are not read.
        settings: The policy's section.
    """
    if given.kind is Kind.SKIPPED:
        return level, Code.NONE
    if given.kind is Kind.REPEATED:
        return given.answered, given.code
    if given.kind is Kind.LATE:
        return min(level, given.before), Code.LATE
    reached = 0
    if given.twos + (level >= 2) >= settings.at_least:
        reached = 2
    elif given.ones + (level >= 1) >= settings.at_least:
        reached = 1
    if not given.before and reached:
        ended = given.since_end_us
        if ended != _NONE_US and ended < settings.cool_down_us:
            return 0, Code.COOLING_DOWN
    answered = reached
    if reached < given.before and given.since_onset_us < settings.hold_us:
        answered = given.before
    if answered > given.before:
        return answered, Code.RAISED
    if answered == level:
        return answered, Code.NONE
    return answered, Code.HELD if answered > level else Code.UNCONFIRMED


def apply_readings(
    state: bytes | None, readings: bytes, settings: Hysteresis
) -> tuple[bytes | None, bytes]:
    """
    Apply readings of one machine to its state, one after the other.

    Args:
        state: The packed state; None for none. One that cannot be read is replaced.
        readings: READING each, in the order of (time, hash). A row of maintenance
            ends the level and drops the readings up to its time.
        settings: The policy's section.

    Returns:
        The state, the given one if nothing changed; EVIDENCE of each reading.
    """
    level, onset_us, end_us, maintenance_us, entries, damaged = _unpacked(state)
    del entries[: max(0, len(entries) - settings.of)]
    changed, found = False, []
    for time_us, name, raw in _READING.iter_unpack(readings):
        if raw >= MAINTENANCE:
            plain = raw - MAINTENANCE
            given = Evidence(Kind.SKIPPED, answered=plain, damaged=damaged)
            found.append(pack_evidence(given, level=plain))
            if time_us > maintenance_us:
                maintenance_us, changed = time_us, True
                entries = [one for one in entries if one[0] > time_us]
                if onset_us <= time_us:
                    level = 0
            continue
        stored = next((one for one in entries if one[1] == name), None)
        if stored is not None:
            answered, code = stored[2] // 4 % 4, Code(stored[2] // 16)
            given = Evidence(Kind.REPEATED, answered, code)
        elif time_us <= maintenance_us or (
            len(entries) >= settings.of and (time_us, name) < entries[0][:2]
        ):
            given = Evidence(Kind.LATE, before=level)
            answered, code = answer(raw, given, settings)
        else:
            at = len(entries)
            while at and (time_us, name) < entries[at - 1][:2]:
                at -= 1
            entries.insert(at, (time_us, name, raw))
            if len(entries) > settings.of:
                del entries[0]
                at -= 1
            now_us = entries[-1][0]
            others = [one[2] % 4 for one in entries[:at] + entries[at + 1 :]]
            given = Evidence(
                Kind.COUNTED,
                before=level,
                ones=sum(one >= 1 for one in others),
                twos=sum(one >= 2 for one in others),
                since_onset_us=now_us - onset_us if level else _NONE_US,
                since_end_us=_NONE_US if end_us == NEVER else now_us - end_us,
            )
            answered, code = answer(raw, given, settings)
            entries[at] = (time_us, name, raw + 4 * answered + 16 * code)
            if answered > level:
                onset_us = now_us
            elif level and not answered:
                end_us = now_us
            level, changed = answered, True
        given = msgspec.structs.replace(
            given, answered=answered, code=code, damaged=damaged
        )
        found.append(pack_evidence(given, level=raw))
    if changed:
        numbers = level, len(entries), onset_us, end_us, maintenance_us
        head = _HEAD.pack(STATE_VERSION, *numbers)
        state = head + b"".join(_READING.pack(*one) for one in entries)
    return state, b"".join(found)


def _unpacked(
    state: bytes | None,
) -> tuple[int, int, int, int, list[tuple[int, bytes, int]], bool]:
    """
    Unpack a state: level, onset, end, maintenance, readings, and whether it is damaged.
    """
    if state is None:
        return 0, NEVER, NEVER, NEVER, [], False
    if len(state) >= _HEAD.size:
        version, level, count, *times = _HEAD.unpack_from(state)
        size = _HEAD.size + count * _READING.size
        if version == STATE_VERSION and len(state) == size:
            entries = list(_READING.iter_unpack(state[_HEAD.size :]))
            return level, *times, entries, False
    return 0, NEVER, NEVER, NEVER, [], True


# Read the section of the policy.


def code_names(raw: RawHysteresis) -> list[str]:
    """List the reason codes that hysteresis gives."""
    without = {Code.NONE} if raw.cool_down else {Code.NONE, Code.COOLING_DOWN}
    return [one.name for one in Code if one not in without]


def read_hysteresis(
    document: Document, raw: RawHysteresis, *, id_names: Sequence[str] | None
) -> Hysteresis:
    """
    Read the section.

    Args:
        raw: The section as written.
        id_names: Inputs that hold ids, the transaction's first; None where they are not
            known: then the entity is not checked.

    Raises:
        PolicyError: The entity or the rule is unknown, a number is outside of its
            range, or the section has no effect.
    """

    def refuse(key: str, problem: str) -> NoReturn:
        document.refuse(("hysteresis", key), problem)

    if id_names is not None:
        entities = [name.removesuffix("_id") for name in id_names[1:]]
        if raw.entity not in entities:
            known = ", ".join(entities) or "the product has none"
            refuse("entity", f"{raw.entity!r} is no entity; {known}")
    if not 1 <= raw.of <= MOST_READINGS:
        refuse("of", f"{raw.of} is not within 1 … {MOST_READINGS}")
    if not 1 <= raw.at_least <= raw.of:
        refuse("at_least", f"{raw.at_least} is not within 1 … {raw.of}")
    times = {}
    for key, text in (("hold", raw.hold), ("cool_down", raw.cool_down)):
        found = 0 if text is None else duration_s(text)
        if text is not None and not found:
            refuse(key, f"{text!r} is no time such as 60s; leave the key out for none")
        times[key] = found or 0
        if times[key] > _MOST_S:
            refuse(key, f"{text} is more than {_MOST_S // 86_400}d")
    if raw.at_least == 1 and not any(times.values()):
        refuse("at_least", "changes nothing: 1 is enough, without hold and cool_down")
    names = code_names(raw)
    for at, rule in enumerate(document.raw.rules):
        if rule.code in names:
            place = ("rules", at, "code")
            document.refuse(place, f"{rule.code} is a code of hysteresis")
    return Hysteresis(
        entity=raw.entity,
        of=raw.of,
        at_least=raw.at_least,
        hold_us=times["hold"] * 1_000_000,
        cool_down_us=times["cool_down"] * 1_000_000,
        maintenance=_maintenance(document, raw.maintenance),
    )


def _maintenance(document: Document, name: str | None) -> int:
    """Return the bit of the rule that holds during maintenance; 0 without one."""
    if name is None:
        return 0
    rules = {one.name: (at, one) for at, one in enumerate(document.raw.rules)}
    if name not in rules:
        known = ", ".join(rules) or "the policy has none"
        problem = f"{name!r} is no rule; {known}"
        document.refuse(("hysteresis", "maintenance"), problem)
    at, rule = rules[name]
    if rule.at_most is None:
        problem = f"the rule {name} has no at_most, which limits the level"
        document.refuse(("hysteresis", "maintenance"), problem)
    return 1 << at

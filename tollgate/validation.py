"""Validate the rows of a batch; describe the first error of each row."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate import compiled
from tollgate.features.fields import field_rule, hash_words, scaled_together
from tollgate.features.spec.spec_definition import Field
from tollgate.schema import (
    AMOUNT,
    CENTS_TOLERANCE,
    CONFLICT,
    ERROR_BYTES,
    EVENT_TIME,
    MAX_AHEAD_US,
    MAX_BATCH_ROWS,
    MAX_CENTS,
    MAX_ID_BYTES,
    MIN_EVENT_TIME_US,
    TRANSACTION_ID,
)

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_SHOWN_BYTES = 40  # of a value that is too long to show in full
_BEYOND = MAX_CENTS / 50  # twice the largest amount


class Checked(msgspec.Struct, frozen=True):
    """
    Result of checking a batch.

    Attributes:
        cents: Amounts; int64 [N], zero where the row is bad.
        errors: Row -> `field: value: rule`, of the first field that is wrong.
        bad: True for these rows; bool [N].
    """

    cents: I64
    errors: dict[int, str]
    bad: Bool


def check_rows(
    ids: Mapping[str, Sequence[bytes]],
    *,
    amount: F64 | None,
    time_us: I64,
    now_us: int,
) -> Checked:
    """
    Check N rows; a bad row does not affect its neighbours.

    Args:
        ids: Id columns by field, in the order of the fields.
        amount: Amounts as sent; float64 [N]. None for a product without money.
        time_us: Event times, µs since the epoch; int64 [N].
        now_us: The server's clock, for "over a day ahead".

    Source: docs/contract.md, "Ids, money, time".
    """
    cents = np.zeros(len(time_us), np.int64)
    if compiled.events is not None and compiled.events.check_rows(
        list(ids.values()),
        amount,
        time_us,
        first_us=MIN_EVENT_TIME_US,
        last_us=now_us + MAX_AHEAD_US,
        max_id_bytes=MAX_ID_BYTES,
        max_cents=MAX_CENTS,
        tolerance=CENTS_TOLERANCE,
        cents=cents,
    ):
        bad = np.zeros(len(time_us), np.bool_)
        return Checked(cents=cents, errors={}, bad=bad)
    errors: dict[int, str] = {}
    if _wrong_ids(list(itertools.chain.from_iterable(ids.values()))):
        for field, column in ids.items():
            for row in _wrong_ids(column):
                text = _text(field, _shown(column[row]), _id_rule(column[row]))
                errors.setdefault(row, text)
    cents[:] = 0
    if amount is not None:
        cents, amount_rules = _amounts(amount)
        for row, rule in amount_rules.items():
            errors.setdefault(row, _text(AMOUNT, repr(float(amount[row])), rule))
    wrong = (time_us < MIN_EVENT_TIME_US) | (time_us > now_us + MAX_AHEAD_US)
    if np.count_nonzero(wrong):
        for row in np.flatnonzero(wrong).tolist():
            early = time_us[row] < MIN_EVENT_TIME_US
            rule = "is before the year 2000" if early else "is over a day ahead"
            errors.setdefault(row, _text(EVENT_TIME, str(int(time_us[row])), rule))
    bad = np.zeros(len(time_us), np.bool_)
    if errors:
        bad[list(errors)] = True
        cents[bad] = 0
    return Checked(cents=cents, errors=errors, bad=bad)


def _wrong_ids(column: Sequence[bytes]) -> list[int]:
    """List rows whose id is empty, too long or not UTF-8; cheap when there is none."""
    longest = max(map(len, column), default=1)
    if all(column) and longest <= MAX_ID_BYTES and _is_text(b"\0".join(column)):
        return []
    return [
        row
        for row, one in enumerate(column)
        if not 0 < len(one) <= MAX_ID_BYTES or not _is_text(one)
    ]


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _id_rule(value: bytes) -> str:
    if not value:
        return "is empty"
    if len(value) > MAX_ID_BYTES:
        return f"has {len(value)} bytes, {MAX_ID_BYTES} are allowed"
    return "is not UTF-8"


def _shown(value: bytes) -> str:
    """Format an id, which may have any bytes, for one line."""
    head = value[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in head)
    return f'"{shown}…"' if len(value) > _SHOWN_BYTES else f'"{shown}"'


def check_fields(
    fields: Sequence[Field], sent: Mapping[str, npt.NDArray[Any]]
) -> tuple[dict[str, I64], dict[int, str]]:
    """
    Check the declared fields of N rows, and turn them into whole numbers.

    Args:
        sent: Values by field name: float64 [N], NaN where a row has none; or texts as
            bytes [N], empty where a row has none.

    Returns:
        int64 [N] per field that was sent; and the problem of each bad row.
    """
    numbers = [one for one in fields if one.type == "number" and one.name in sent]
    words = [one for one in fields if one.type != "number" and one.name in sent]
    columns: dict[str, I64] = {}
    wrong: list[tuple[str, int, str]] = []  # field, row, problem
    if numbers:
        values = np.stack([sent[one.name] for one in numbers])
        whole, beyond = scaled_together(values, numbers)
        columns |= zip([one.name for one in numbers], whole, strict=True)
        for at, row in np.argwhere(beyond).tolist():
            text = f"{float(values[at, row])!r}: {field_rule(numbers[at])}"
            wrong.append((numbers[at].name, row, text))
    if words:
        hashes, bad = _hashed([sent[one.name].tolist() for one in words])
        columns |= zip([one.name for one in words], hashes, strict=True)
        wrong += [(words[at].name, row, text) for at, row, text in bad]
    if not wrong:
        return columns, {}
    order = {one.name: place for place, one in enumerate(fields)}
    errors: dict[int, str] = {}
    for name, row, text in sorted(wrong, key=lambda one: order[one[0]]):
        errors.setdefault(row, _cut(f"{name}: {text}"))
    return columns, errors


def _hashed(words: list[list[bytes]]) -> tuple[I64, list[tuple[int, int, str]]]:
    """Hash texts, [K, N]; list invalid ones: field position, row, value, rule."""
    rows = len(words[0])
    flat = list(itertools.chain.from_iterable(words))
    wrong = []
    for at in _wrong_ids(flat):
        if flat[at]:
            text = f"{_shown(flat[at])}: {_id_rule(flat[at])}"
            wrong.append((at // rows, at % rows, text))
            flat[at] = b""
    return hash_words(flat).reshape(len(words), rows), wrong


def _amounts(amount: F64) -> tuple[I64, dict[int, str]]:
    """Convert amounts to cents; int64 [N], and the rule that a bad row broke."""
    if len(amount) <= MAX_BATCH_ROWS:  # numbers are faster than small arrays
        cents = _whole_cents(amount.tolist())
        if len(cents) == len(amount):
            return np.array(cents, np.int64), {}
    # Amounts are clipped just outside the allowed range: no overflow, no warning.
    exact = np.minimum(np.maximum(amount, -1.0), _BEYOND) * 100.0
    rounded = np.rint(exact)
    good = np.abs(exact - rounded) <= CENTS_TOLERANCE * np.maximum(1.0, rounded)
    good &= (rounded >= 0) & (rounded <= MAX_CENTS)
    if good.all():
        return rounded.astype(np.int64), {}
    whole = np.where(good, rounded, 0.0).astype(np.int64)
    rules = {
        row: _amount_rule(float(amount[row])) for row in np.flatnonzero(~good).tolist()
    }
    return whole, rules


def _whole_cents(amounts: list[float]) -> list[int]:
    """Convert amounts to cents, up to the first whose rule needs a closer look."""
    cents = []
    for one in amounts:
        exact = one * 100.0
        if not 0.0 <= exact <= MAX_CENTS:
            break
        rounded = round(exact)
        if abs(exact - rounded) > CENTS_TOLERANCE:
            break
        cents.append(rounded)
    return cents


def _amount_rule(amount: float) -> str:
    if not np.isfinite(amount):
        return "is not a finite number"
    if amount < 0:
        return "is negative"
    if amount * 100.0 > MAX_CENTS:
        return f"is over {MAX_CENTS / 100:.2f}"
    return "is not in whole cents"


def conflict(transaction_id: bytes) -> str:
    """Build the error for an id that was decided before with other content."""
    return _text(TRANSACTION_ID, _shown(transaction_id), CONFLICT)


def _text(field: str, value: str, rule: str) -> str:
    return _cut(f"{field}: {value}: {rule}")


def _cut(text: str) -> str:
    return text.encode()[:ERROR_BYTES].decode("utf-8", "ignore")

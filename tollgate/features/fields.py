"""
Convert the declared fields of a request to whole numbers.

A number with decimals is stored in units of its last decimal, as money is in cents; an
exact number as its position among all float64 (`schema.float_places`). A category is
stored as a 64-bit hash, which is enough to count its values; its code is the position
in the vocabulary of the word with that hash.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_definition import FeatureSpec, Field
from tollgate.features.windows.entity_entries import MISSING
from tollgate.schema import MAX_BATCH_ROWS, float_places
from tollgate.schema import hash_words as hash_words

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Fields = Mapping[str, I64]

MISSING_CODE, UNSEEN_CODE = -1, -2  # codes of a category


def scaled(values: F64, field: Field) -> tuple[I64, Bool]:
    """
    Convert numbers to integers: in units of a field's last decimal, or as exact floats.

    Args:
        values: As sent; NaN for one that was not sent; float64 [N].
        field: A number.

    Returns:
        Integer multiples of 10^-decimals, or positions of floats; MISSING where nothing
        was sent, 0 where the number is out of range; int64 [N]; and the rows out of
        range; bool [N].
    """
    whole, wrong = scaled_together(values[None], [field])
    return whole[0], wrong[0]


def scaled_together(values: F64, fields: Sequence[Field]) -> tuple[I64, Bool]:
    """Convert the numbers of several fields at once; see `scaled`; all are [K, N]."""
    limits = np.array(
        [(10.0 ** (one.decimals or 0), one.low, one.high) for one in fields]
    )
    unit, low, high = limits.T[:, :, None]
    floats = [at for at, one in enumerate(fields) if one.decimals is None]
    with np.errstate(over="ignore"):  # an overflow is out of every range
        exact = np.rint(values * unit)
    exact[floats] = values[floats]
    missing = np.isnan(exact)
    wrong = ~missing & ~((exact >= low) & (exact <= high))
    sound = np.where(missing | wrong, 0.0, exact)
    if len(floats) == len(fields):
        whole = float_places(sound)
    else:
        whole = sound.astype(np.int64)
        whole[floats] = float_places(sound[floats])
    whole[missing] = MISSING
    return whole, wrong


def stored_range(field: Field) -> tuple[float, float]:
    """Return the smallest and the largest stored number of a field."""
    if field.decimals is not None:
        return field.low, field.high
    low, high = float_places(np.array([field.low, field.high])).tolist()
    return low, high


def field_rule(field: Field) -> str:
    """Describe the range of a field, for the error about a number outside it."""
    unit = 10 ** (field.decimals or 0)
    return f"is not within {field.low / unit:g} … {field.high / unit:g}"


def codes(hashes: I64, field: Field) -> I64:
    """
    Look up words in the frozen vocabulary of a category.

    Returns:
        Positions in the vocabulary, from 0; MISSING_CODE without a word, UNSEEN_CODE
        for one that is not in it; int64 [N].
    """
    if len(hashes) <= MAX_BATCH_ROWS:  # several times faster than with arrays
        get, none = field.places.get, MISSING
        return np.array(
            [
                MISSING_CODE if one == none else get(one, UNSEEN_CODE)
                for one in hashes.tolist()
            ],
            np.int64,
        )
    ascending, place = _table(field.vocabulary)
    at = np.minimum(ascending.searchsorted(hashes), len(ascending) - 1)
    found = np.where(ascending[at] == hashes, place[at], UNSEEN_CODE)
    found[hashes == MISSING] = MISSING_CODE
    return found


@functools.lru_cache(maxsize=64)
def _table(vocabulary: tuple[str, ...]) -> tuple[I64, I64]:
    hashes = hash_words([word.encode() for word in vocabulary])
    place = np.argsort(hashes)
    return hashes[place], place


def field_values(fields: Fields, name: str, rows: int) -> I64:
    """Return one field's column; MISSING for every row if no request had it; [N]."""
    column = fields.get(name)
    return np.full(rows, MISSING) if column is None else column


def stacked(fields: Fields, names: Sequence[str], rows: int) -> I64:
    """Return several fields' columns as one array, MISSING without a value; [K, N]."""
    if all(name in fields for name in names):
        return np.stack([fields[name] for name in names])
    return np.stack([field_values(fields, name, rows) for name in names])


def lacks_fields(spec: FeatureSpec, fields: Fields, rows: int) -> Bool:
    """Return which rows lack a field of a feature, or have a word not in its list."""
    # A field for the policy is not part of the vector, so it may be missing.
    wanted = [one for one in spec.fields if one.use != "policy"]
    if not wanted:
        return np.zeros(rows, np.bool_)
    values = stacked(fields, [one.name for one in wanted], rows)
    found: Bool = (values == MISSING).any(axis=0)
    for field, own in zip(wanted, values, strict=True):
        if field.vocabulary:
            found |= codes(own, field) < 0
    return found

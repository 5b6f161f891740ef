"""
Test on synthetic columns that a hook's output depends on each row's own columns only.

Each row of many must get the same values alone, in batches of any size and in any
order, every time. The hook must not change its input columns, and its output columns
must have the right form.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from tollgate.errors import HookError
from tollgate.features.definition import FeatureSpec, Hook
from tollgate.features.hook import text_of
from tollgate.features.hook_run import HookColumns, Outputs, run_hook
from tollgate.features.hook_samples import sample

I64 = npt.NDArray[np.int64]

_ROWS = 256
_SEEDS = (1, 2, 3)
_SIZES = (1, 2, 3, 5, 8, 31, 32, 33)  # batch sizes; a request has 1 to 32 rows
_ALONE = 48  # rows, in addition to the special ones of a sample


def prove(spec: FeatureSpec, hook: Hook) -> str:
    """
    Run a hook on synthetic columns of many kinds.

    Returns:
        A hash of all outputs: the same in every process.

    Raises:
        HookError: The hook failed, returned anything but columns of numbers, changed
            its input, or the output of a row depends on more than its own columns.
    """
    digest = hashlib.sha256()
    for seed in _SEEDS:
        given = sample(spec, hook, rows=_ROWS, seed=seed)
        before = _hash(given)
        whole = run_hook(hook, given)
        same = np.arange(_ROWS)
        _compare(hook, whole, run_hook(hook, given), rows=same, how="called again")
        draw = np.random.default_rng(seed)
        first = 0
        for size in (*_SIZES, *[1] * _ALONE):
            chosen = np.arange(first, first + size)
            part = run_hook(hook, given.part(chosen))
            how = f"in a batch of {size}, not {_ROWS},"
            _compare(hook, whole, part, rows=chosen, how=how)
            first += size
        order = draw.permutation(_ROWS)
        mixed = run_hook(hook, given.part(order))
        _compare(hook, whole, mixed, rows=order, how="in another order")
        if _hash(given) != before:
            raise HookError(hook.path, "changes what it is given: copy it first")
        for name in hook.columns:
            digest.update(_canonical(whole[name]).tobytes())
    return digest.hexdigest()


def _compare(hook: Hook, whole: Outputs, part: Outputs, *, rows: I64, how: str) -> None:
    """Check that rows have the same bits; NaN equals NaN."""
    for name in hook.columns:
        wanted, found = _canonical(whole[name][rows]), _canonical(part[name])
        differing = np.flatnonzero(wanted.view(np.int64) != found.view(np.int64))
        if len(differing):
            at = differing[0]
            problem = (
                f"{name!r} of a row was {wanted[at]}, and {how} is {found[at]}: it "
                "may hang on the columns of its own row alone"
            )
            line = text_of(hook).columns[name]
            raise HookError(hook.path, problem, where=f"line {line}")


def _canonical(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(np.isnan(values), np.nan, values)


def _hash(given: HookColumns) -> bytes:
    digest = hashlib.sha256()
    for columns in (given.request, given.features):
        for column in columns.values():
            digest.update(column.tobytes())
    return digest.digest()

"""
Try the hook of a features.yaml in separate processes, which may hang.

Two processes with different seeds of Python's hashes check it (features/hook_proof.py)
and must give the same results; one of them measures how long a full batch takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from tollgate.errors import HookError, InputError
from tollgate.features.hook.hook_proof import prove, sample
from tollgate.features.hook.hook_run import run_hook
from tollgate.features.spec.feature_spec import load_draft
from tollgate.features.spec.spec_definition import FeatureSpec, Hook
from tollgate.schema import MAX_BATCH_ROWS

TIMEOUT_S = 30.0
# A decision has 20 ms; a declared feature costs 5 to 100 µs a batch.
BUDGET_US = 1_000.0

_HASH_SEEDS = ("1", "2")
_CALLS = 101
_WARM_CALLS = 10


class Tried(msgspec.Struct, frozen=True):
    """
    The result of one process.

    Attributes:
        digest: Hash of all results of the hook.
        took_us: Median time of a batch of 32 rows, µs.
        source: File with the problem; empty if there is none.
    """

    digest: str = ""
    took_us: float = 0.0
    source: str = ""
    where: str = ""
    problem: str = ""


def prove_hook(path: Path, *, timeout_s: float = TIMEOUT_S) -> float | None:
    """
    Try the hook of a features.yaml; return its median time, µs, or None without one.

    Args:
        path: The features.yaml.
        timeout_s: Maximum time of a process, seconds.

    Raises:
        SpecError: The features.yaml cannot be used.
        HookError: The hook fails, takes too long, or gives other numbers in a second
            call, in another process, or in a batch with other rows.
    """
    spec = load_draft(path)
    if spec.hook is None:
        return None
    first, *others = (
        _try_apart(path, spec.hook, hash_seed=seed, timeout_s=timeout_s)
        for seed in _HASH_SEEDS
    )
    if any(one.digest != first.digest for one in others):
        problem = "gives other numbers in another process: it hangs on more than a row"
        raise HookError(spec.hook.path, problem)
    took_us = min(one.took_us for one in (first, *others))
    if took_us > BUDGET_US:
        problem = (
            f"takes {took_us:.0f} µs for {MAX_BATCH_ROWS} rows, {BUDGET_US:.0f} are "
            "allowed: every answer would wait for it"
        )
        raise HookError(spec.hook.path, problem)
    return took_us


def _try_apart(path: Path, hook: Hook, *, hash_seed: str, timeout_s: float) -> Tried:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", __name__, str(path.resolve())]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as exc:
        problem = f"did not end within {timeout_s:g} s on a few thousand rows"
        raise HookError(hook.path, problem) from exc
    except OSError as exc:
        raise HookError(hook.path, f"could not be tried: {exc.strerror}") from exc
    try:
        tried = msgspec.json.decode(done.stdout, type=Tried)
    except msgspec.MsgspecError as exc:
        said = " ".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])
        problem = f"its trial ended with status {done.returncode}: {said}"
        raise HookError(hook.path, problem) from exc
    if tried.problem:
        raise HookError(hook.path, tried.problem, where=tried.where)
    return tried


def _try(path: Path) -> Tried:
    """Check and time the hook in this process."""
    try:
        spec = load_draft(path)
        if spec.hook is None:
            return Tried()
        digest = prove(spec, spec.hook)
        return Tried(digest, _time_us(spec, spec.hook))
    except InputError as error:
        return Tried(source=error.source, where=error.where, problem=error.problem)


def _time_us(spec: FeatureSpec, hook: Hook) -> float:
    """Time full batches; return the median, which a busy machine changes least."""
    given = sample(spec, hook, rows=MAX_BATCH_ROWS, seed=0)
    took_us = []
    for _ in range(_WARM_CALLS + _CALLS):
        begun_ns = time.perf_counter_ns()
        run_hook(hook, given)
        took_us.append((time.perf_counter_ns() - begun_ns) / 1e3)
    return float(np.median(took_us[_WARM_CALLS:]))


def main() -> None:
    """Try the hook that the command line names; print the result as JSON."""
    (path,) = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(_try(Path(path))))


if __name__ == "__main__":
    main()

"""
Check a version that was copied in by hand, in a separate process.

The files may be anything: a file that crashes its reader, or eats all memory, must not
take the supervisor along.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.errors import InputError, PolicyError, RepositoryError, SpecError
from tollgate.repository.lint.product_rules import require_sound
from tollgate.repository.models.candidate import require_files
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import ARTIFACT_FILE
from tollgate.server.model_trial import prove

TIMEOUT_S = 120.0
_NICE = 10  # serving processes on this machine have priority
_BUDGET = "budget"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)

State = Literal["sound", "incomplete", "bad"]


class Verdict(msgspec.Struct, frozen=True):
    """
    The result of checking a version.

    Attributes:
        state: "sound" (valid) or "bad"; "incomplete" when it is too early to say.
        reason: Reason why it is not valid; empty if it is.
        certain: True if its files are the cause, and not the load of this machine.
    """

    state: State
    reason: str = ""
    certain: bool = False


def validate(repository: Path, *, product: str, version: int) -> Verdict:
    """
    Check a version of a product's model step, in this process.

    Runs the checks of `publish`, without a separate server.
    """
    snapshot = RepositorySnapshot(repository)
    try:
        # A problem that exists without the version is not the version's fault.
        require_sound(snapshot, product=product)
        step = snapshot.product(product).model_step
    except InputError as error:
        return Verdict("incomplete", f"the repository is not valid: {error}")
    directory = repository / step / str(version)
    if not (directory / ARTIFACT_FILE).is_file():
        return Verdict("incomplete", f"has no {ARTIFACT_FILE} yet")
    try:
        require_files(directory)
        prove(directory, snapshot, product=product)
    except (SpecError, PolicyError) as error:
        return Verdict("incomplete", str(error))
    except RepositoryError as error:
        return Verdict("bad", str(error), certain=error.where != _BUDGET)
    return Verdict("sound")


def validate_in_subprocess(
    repository: Path, *, product: str, version: int, timeout_s: float = TIMEOUT_S
) -> Verdict:
    """Check a version in a separate process, which may crash."""
    command = [sys.executable, "-m", __name__, str(repository), product, str(version)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict("bad", f"could not be checked within {timeout_s:g} s")
    except OSError as error:
        return Verdict("incomplete", f"could not be checked: {error.strerror}")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        # SIGKILL comes from a person, or from a machine that is out of memory.
        certain = done.returncode != -signal.SIGKILL
        return Verdict("bad", f"its check ended with {name}", certain=certain)
    try:
        return msgspec.json.decode(done.stdout, type=Verdict)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Verdict("bad", f"could not be checked: {' '.join(problem)}")


def main() -> None:
    """Check the version that the command line names; print the verdict as JSON."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    os.nice(_NICE)
    repository, product, version = sys.argv[1:]
    verdict = validate(Path(repository), product=product, version=int(version))
    sys.stdout.buffer.write(msgspec.json.encode(verdict))


if __name__ == "__main__":
    main()

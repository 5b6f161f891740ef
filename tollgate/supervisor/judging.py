"""
Is a version that somebody copied in a sound one? Judged in a process of its own.

What is judged is whatever lies there: a file that crashes its reader, or eats all
memory, must not take the supervisor along.
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
from tollgate.repository.artifact import ARTIFACT_FILE
from tollgate.repository.candidate import require_files
from tollgate.repository.check import require_sound
from tollgate.repository.product import read_product
from tollgate.server.proving import prove

TIMEOUT_S = 120.0
_NICE = 10  # what serves on this machine goes first
_BUDGET = "budget"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)

State = Literal["sound", "incomplete", "bad"]


class Verdict(msgspec.Struct, frozen=True):
    """
    What is to be said of a version.

    Attributes:
        state: "incomplete" when it is too early to say.
        reason: Why it is not sound; empty when it is.
        certain: Whether its files are to blame, whatever this machine is busy with.
    """

    state: State
    reason: str = ""
    certain: bool = False


def judge(repository: Path, *, product: str, version: int) -> Verdict:
    """
    Judge a version of a product's model step, in this process.

    Proves what `publish` proves, without the server of its own.

    Args:
        repository: The model repository.
        product: The ensemble.
        version: Its number.
    """
    try:
        # What is wrong without it is no fault of its own.
        require_sound(repository, product=product)
        models = read_product(repository, product)
    except InputError as error:
        return Verdict("incomplete", f"the repository is not sound: {error}")
    directory = repository / models.model_step / str(version)
    if not (directory / ARTIFACT_FILE).is_file():
        return Verdict("incomplete", f"has no {ARTIFACT_FILE} yet")
    try:
        require_files(directory)
        prove(directory, models=models)
    except (SpecError, PolicyError) as error:
        return Verdict("incomplete", str(error))
    except RepositoryError as error:
        return Verdict("bad", str(error), certain=error.where != _BUDGET)
    return Verdict("sound")


def judge_apart(
    repository: Path, *, product: str, version: int, timeout_s: float = TIMEOUT_S
) -> Verdict:
    """Judge a version in a process of its own, which may die of it."""
    command = [sys.executable, "-m", __name__, str(repository), product, str(version)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict("bad", f"could not be tried within {timeout_s:g} s")
    except OSError as error:
        return Verdict("incomplete", f"could not be tried: {error.strerror}")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        # SIGKILL comes from people, and from a machine without memory.
        certain = done.returncode != -signal.SIGKILL
        return Verdict("bad", f"its trial ended with {name}", certain=certain)
    try:
        return msgspec.json.decode(done.stdout, type=Verdict)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Verdict("bad", f"could not be tried: {' '.join(said)}")


def main() -> None:
    """Judge the version that the command line names; the verdict as JSON."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    os.nice(_NICE)
    repository, product, version = sys.argv[1:]
    verdict = judge(Path(repository), product=product, version=int(version))
    sys.stdout.buffer.write(msgspec.json.encode(verdict))


if __name__ == "__main__":
    main()

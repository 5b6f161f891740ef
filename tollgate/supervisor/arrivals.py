"""
Detect and check versions that people copy into the repository by hand.

Every few seconds the supervisor looks at the model step's folder. It waits until a
version that no release names is complete, then checks it as `publish` would, and moves
a bad one away from its number. Serving models read copies of their own and are not
affected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tollgate.errors import InputError
from tollgate.repository.artifact import ARTIFACT_FILE
from tollgate.repository.configs import config_path
from tollgate.repository.product import read_product
from tollgate.repository.quarantine import quarantine, unreleased_versions
from tollgate.supervisor.faults import now_text
from tollgate.supervisor.judging import State, Verdict, judge_apart
from tollgate.worker import Worker

log = logging.getLogger(__name__)

INTERVAL_S = 3.0
_AGAIN_S = 30.0  # pause before an incomplete version is checked again
_KEEP = 20  # versions that were moved away, in `Arrivals.now`

Print = tuple[tuple[str, int, int], ...]


class Arrival(msgspec.Struct, frozen=True):
    """
    A version that no release names.

    Attributes:
        product: Name of the ensemble.
        step: Name of the model.
        version: Number of the version.
        state: "sound", "incomplete" or "bad".
        reason: Reason why it is not sound; empty if it is sound.
        since: Time when this state was found, RFC 3339 in UTC.
        moved_to: Folder that a bad version was moved to; empty while it is at its
            number.
    """

    product: str
    step: str
    version: int
    state: State
    reason: str
    since: str
    moved_to: str = ""


class _Seen:
    """A version as the last look found it."""

    def __init__(self, files: Print) -> None:
        self.files = files
        self.changed_s = time.monotonic()
        self.judged_s = 0.0
        self.verdict: Verdict | None = None


class Arrivals:
    """
    Check the versions that no release names, in a background thread of this context.

    Args:
        repository: The model repository, a folder.
        product: Name of the ensemble.
        quiet_s: Seconds for which the files must be unchanged before a version counts
            as bad: a copy may pause.
        bad: Called once with each bad version.
        sound: Called with each sound version at every look, until it returns True.
    """

    def __init__(
        self,
        repository: Path,
        *,
        product: str,
        quiet_s: float,
        bad: Callable[[Arrival], None] = lambda arrival: None,
        sound: Callable[[Arrival], bool] = lambda arrival: True,
    ) -> None:
        self._repository = repository
        self._product = product
        self._bad = bad
        self._sound = sound
        self._quiet_s = quiet_s
        self._seen: dict[int, _Seen] = {}
        self._told: dict[int, Arrival] = {}
        self._moved: list[Arrival] = []
        self._done: set[Arrival] = set()
        self._configs: tuple[str, ...] = ()
        self._config_print: Print = ()
        self._step = ""
        self._unreadable = ""
        self._worker = Worker(
            f"arrivals-{product}", self._look_if_readable, pause_s=INTERVAL_S
        )

    @property
    def now(self) -> list[Arrival]:
        """Versions found in the repository, and versions that were moved away."""
        return [*self._moved, *self._told.copy().values()]

    def __enter__(self) -> Arrivals:
        """Start looking."""
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking, without waiting for a check in progress."""
        self._worker.stop(0)

    def look(self) -> None:
        """
        Check the versions that no release names once.

        Raises:
            InputError: The repository cannot be read.
        """
        step = self._model_step()
        there = unreleased_versions(self._repository, product=self._product, step=step)
        for version in self._seen.keys() - set(there):
            del self._seen[version]
            self._told.pop(version, None)
        for version in there:
            self._look_at(step, version)
        sound = [one for one in self._told.values() if one.state == "sound"]
        self._done &= set(sound)
        for one in sound:
            if one not in self._done and self._sound(one):
                self._done.add(one)

    def _model_step(self) -> str:
        """Return the model step's name; parse configurations only after a change."""
        found = self._configs and _config_print(self._repository, self._configs)
        if not found or found != self._config_print:
            product = read_product(self._repository, self._product)
            self._configs = (self._product, *product.steps)
            self._config_print = _config_print(self._repository, self._configs)
            self._step = product.model_step
        return self._step

    def _look_at(self, step: str, version: int) -> None:
        directory = self._repository / step / str(version)
        files = _print(directory)
        seen = self._seen.get(version)
        if seen is None or seen.files != files:
            self._seen[version] = _Seen(files)
            self._tell(step, version, Verdict("incomplete", "its files are changing"))
            return
        if not (directory / ARTIFACT_FILE).is_file():
            verdict = Verdict("incomplete", f"has no {ARTIFACT_FILE} yet")
        else:
            verdict = self._judged(version, seen)
            if _print(directory) != files:
                return  # the files changed meanwhile; the next look checks them
        quiet = time.monotonic() - seen.changed_s >= self._quiet_s
        if verdict.state != "bad" or quiet:
            self._tell(step, version, verdict)
        else:
            self._tell(step, version, Verdict("incomplete", verdict.reason))

    def _judged(self, version: int, seen: _Seen) -> Verdict:
        now_s = time.monotonic()
        early = seen.verdict is not None and seen.verdict.state == "incomplete"
        if seen.verdict is None or (early and now_s - seen.judged_s > _AGAIN_S):
            seen.verdict = judge_apart(
                self._repository, product=self._product, version=version
            )
            seen.judged_s = now_s
        return seen.verdict

    def _tell(self, step: str, version: int, verdict: Verdict) -> None:
        before = self._told.get(version)
        state, reason = verdict.state, verdict.reason
        if before is not None and (before.state, before.reason) == (state, reason):
            return
        told = Arrival(self._product, step, version, state, reason, now_text())
        if state == "bad" and verdict.certain:
            place = quarantine(
                self._repository,
                product=self._product,
                step=step,
                version=version,
                reason=reason,
            )
            told = msgspec.structs.replace(told, moved_to=str(place or ""))
        if told.moved_to:
            self._moved = [*self._moved, told][-_KEEP:]
            self._told.pop(version, None)
        else:
            self._told[version] = told
        self._say(told, first=before is None)

    def _say(self, told: Arrival, *, first: bool) -> None:
        name = f"{told.step} version {told.version}"
        if told.state == "bad":
            where = f"; moved to {told.moved_to}" if told.moved_to else ""
            log.error("%s is bad: %s%s", name, told.reason, where)
            self._bad(told)
        elif told.state == "sound":
            log.info("%s is sound; no release names it", name)
        elif first:
            log.info("%s is arriving", name)

    def _look_if_readable(self) -> None:
        """Look once; if the repository cannot be read, log the reason once."""
        try:
            self.look()
            self._unreadable = ""
        except (InputError, OSError) as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                log.warning("versions are not looked at: %s", error)


def _config_print(repository: Path, models: tuple[str, ...]) -> Print:
    """Describe the configuration files of models; return () if one cannot be read."""
    try:
        found = [(name, config_path(repository, name).stat()) for name in models]
    except OSError:
        return ()
    return tuple((name, one.st_size, one.st_mtime_ns) for name, one in found)


def _print(directory: Path) -> Print:
    """Describe files by name, size and modification time."""
    found = []
    for path in sorted(directory.rglob("*")):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # renamed meanwhile
        name = path.relative_to(directory).as_posix()
        found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)

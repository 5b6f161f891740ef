"""
A server follows its repository: what release.json names is what it goes to serve.

The file is desired state. Once a second it is read; when it names another release than
the one that answers, the server goes there while it serves. What cannot be taken is
left, with the reason, and tried again later: the files of a release may come in after
it, and what was broken may be mended in place.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.errors import RepositoryError, TollgateError
from tollgate.repository.check import require_sound
from tollgate.repository.hashes import SHORT_DIGITS
from tollgate.repository.release import Release, read_release, release_path
from tollgate.repository.serving_plan import canary_of, plan_serving
from tollgate.server.loaded import Line
from tollgate.server.serving import Serving
from tollgate.supervisor.faults import now_text

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
_RETRY_S, _MOST_RETRY_S = 2.0, 60.0

Progress = Literal["converged", "converging", "failed"]


class Convergence(msgspec.Struct, frozen=True):
    """
    How far a server is with a product.

    Attributes:
        product: The ensemble.
        desired: Release that the repository names; empty when it names none.
        running: Release that answers.
        state: "converged" when these are one; "converging" on the way; "failed" when
            the desired one could not be taken.
        doing: What is being done, or the reason of the failure.
        since: When this state began, RFC 3339 in UTC.
        attempts: How often the desired release was tried in vain.
        file: The release.json that this is about: its SHA-256, the first 12 digits.
        canary: Challenger that answers a share of the customers, with the share.
    """

    product: str
    desired: str
    running: str
    state: Progress
    doing: str
    since: str
    attempts: int = 0
    file: str = ""
    canary: str = ""


class Converger:
    """
    Brings one product of a server to the release that its repository names.

    Args:
        serving: What the server has loaded.
        repository: The model repository.
        product: The ensemble.
        config_name: Named configuration to take where a model has it.
        refused: Called with release and reason when one could not be taken, once for
            each reason.

    Attributes:
        now: How far it is.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        repository: Path,
        product: str,
        config_name: str = "",
        refused: Callable[[str, str], None] = lambda release, why: None,
    ) -> None:
        self._serving = serving
        self._repository = repository
        self._product = product
        self._config_name = config_name
        self._refused = refused
        self._tried = b""  # content of the file that was tried last
        self._again_s = 0.0
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(
            target=self._live, name=f"converge-{product}", daemon=True
        )
        running = self._running()
        self.now = Convergence(
            product, running, running, "converged", "", since=now_text()
        )

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more; a switch that is under way ends first."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def look(self) -> None:
        """Look once, and go where the repository says."""
        content = _content(release_path(self._repository, self._product))
        settled = content == self._tried and self.now.state == "converged"
        waiting = content == self._tried and time.monotonic() < self._again_s
        if settled or (waiting and self.now.state == "failed"):
            return
        if content != self._tried:
            self._tell(
                attempts=0,
                file=digest_of(content),
                state="converging",
                doing="checking",
            )
        self._tried = content
        try:
            release = read_release(self._repository, product=self._product)
            self._go(release)
        except TollgateError as error:
            self._fail(str(error))

    def _go(self, release: Release) -> None:
        active = self._serving.active
        if active is None or not _is_served(release, active):
            self._tell(desired=release.name, state="converging", doing="checking")
            self._require_same(release)
            log.info("%s: release %s is wanted", self._product, release.name)
            require_sound(
                self._repository, product=self._product, config_name=self._config_name
            )
            plan = plan_serving(
                self._repository, release, config_name=self._config_name
            )
            self._serving.switch(plan, told=self._told)
            log.info("%s: release %s answers", self._product, release.name)
        self._tell(
            desired=release.name,
            running=self._running(),
            canary=_canary_words(release),
            state="converged",
            doing="",
            attempts=0,
        )

    def _require_same(self, release: Release) -> None:
        """Demand that a release that answers is not another one by now."""
        active = self._serving.active
        if active is None or active.release != release.name:
            return
        if active.versions != release.versions:
            path = release_path(self._repository, self._product)
            problem = f"{release.name} answers already, with other versions"
            raise RepositoryError(path, problem, where="name")

    def _told(self, doing: str) -> None:
        self._tell(doing=doing)

    def _fail(self, why: str) -> None:
        attempts = self.now.attempts + 1
        if (self.now.state, self.now.doing) != ("failed", why) and attempts == 1:
            log.error(
                "%s: release %s was not taken: %s", self._product, self._wanted(), why
            )
            self._refused(self._wanted(), why)
        pause_s = min(_RETRY_S * 2 ** (attempts - 1), _MOST_RETRY_S)
        self._again_s = time.monotonic() + pause_s
        self._tell(state="failed", doing=why, attempts=attempts)

    def _wanted(self) -> str:
        return self.now.desired or "of this repository"

    def _running(self) -> str:
        active = self._serving.active
        return active.release if active else ""

    def _tell(self, **changes: object) -> None:
        before = self.now
        now = msgspec.structs.replace(before, **changes)
        if now.state != before.state or now.desired != before.desired:
            now = msgspec.structs.replace(now, since=now_text())
        self.now = now

    def _live(self) -> None:
        while not self._stopped:
            try:
                self.look()
            except Exception:
                # Whatever it is, what serves goes on; the next look may see better.
                log.exception("%s: the repository was not followed", self._product)
            self._wake.wait(INTERVAL_S)
            self._wake.clear()


def _is_served(release: Release, active: Line) -> bool:
    """Tell whether what is wanted is what answers, its canary included."""
    canary = active.canary.challenger if active.canary else None
    return (
        release.name == active.release
        and release.versions == active.versions
        and canary_of(release) == canary
    )


def digest_of(content: bytes) -> str:
    """Name a release.json by what it says."""
    return hashlib.sha256(content).hexdigest()[:SHORT_DIGITS]


def _canary_words(release: Release) -> str:
    canary = canary_of(release)
    return f"{canary.release} {canary.percent:g} %" if canary else ""


def _content(path: Path) -> bytes:
    """Read a file; nothing when it is not there or cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""

"""
Reconcile a server with its repository: serve the release that release.json names.

The file is the desired state. The supervisor reads it once a second; when it names
another release than the one that answers, the server switches to it while it serves. If
the server cannot load a release, it reports the reason and tries again later: the files
of a release may arrive after release.json, and a broken file may be repaired in place.
A repository that cannot be reached changes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from tollgate.errors import ObjectStoreError, RepositoryError, TollgateError
from tollgate.repository.check import require_sound
from tollgate.repository.hashes import SHORT_DIGITS
from tollgate.repository.release import Release, decode_release
from tollgate.repository.serving_plan import canary_of, plan_serving
from tollgate.repository.source import Source
from tollgate.server.loaded import Line
from tollgate.server.serving import Serving
from tollgate.supervisor.faults import now_text
from tollgate.worker import Worker, backoff_s

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
_RETRY_S, _MOST_RETRY_S = 2.0, 60.0

Progress = Literal["converged", "converging", "failed"]


class Convergence(msgspec.Struct, frozen=True):
    """
    The state of a server's reconciliation for one product.

    Attributes:
        product: Name of the ensemble.
        desired: Release that the repository names; empty if it names none.
        running: Release that answers.
        state: "converged" when both are the same; "converging" during a switch;
            "failed" when the desired release could not be loaded.
        doing: Current action, or the reason of the failure.
        since: Time when this state began, RFC 3339 in UTC.
        attempts: Number of failed attempts to load the desired release.
        file: First 12 digits of the SHA-256 of the release.json that this state refers
            to.
        canary: Challenger that answers a share of the customers, with the share.
        unreachable: Reason why the repository cannot be read; empty while it can.
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
    unreachable: str = ""


class Converger:
    """
    Reconcile one product of a server with the release that its repository names.

    Args:
        serving: Record of what the server has loaded.
        source: The model repository.
        product: Name of the ensemble.
        config_name: Named configuration to use if a model has it.
        problem: Reason why no release of the product is loaded yet; empty if one is.
        refused: Called with release and reason when a release could not be loaded, once
            for each reason.

    Attributes:
        now: Current state of the reconciliation.
        problem: Reason why the last desired release could not be loaded; empty if it
            could.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        source: Source,
        product: str,
        config_name: str = "",
        problem: str = "",
        refused: Callable[[str, str], None] = lambda release, why: None,
    ) -> None:
        self._serving = serving
        self._source = source
        self._product = product
        self._config_name = config_name
        self._refused = refused
        self._tried = ""  # the repository's answer at the last attempt
        self._again_s = 0.0
        self._why = ""  # the reason that was logged last
        self.problem = problem
        self._worker = Worker(
            f"converge-{product}",
            self.look,
            pause_s=INTERVAL_S,
            most_pause_s=_MOST_RETRY_S,
            failed=lambda error: self._fail(f"unforeseen: {error!r}"),
            gentle=True,  # serving processes have priority
        )
        state: Progress = "failed" if problem else "converged"
        running = serving.release
        self.now = Convergence(
            product, running, running, state, problem, since=now_text()
        )

    def start(self) -> None:
        """Start to follow the repository."""
        self._worker.start()

    def stop(self) -> None:
        """Stop following the repository, after a switch in progress has ended."""
        self._worker.stop()

    def look(self) -> None:
        """Look at the repository once, and switch to the release that it names."""
        try:
            said = self._source.look()
        except ObjectStoreError as error:
            self._miss(error)
            return
        if self.now.unreachable:
            log.info("%s: the repository is there again", self._product)
            self._tell(unreachable="")
        settled = said == self._tried and self.now.state == "converged"
        waiting = said == self._tried and time.monotonic() < self._again_s
        if settled or (waiting and self.now.state == "failed"):
            return
        if said != self._tried:
            self._why = ""
            self._tell(desired="", attempts=0, state="converging", doing="checking")
        self._tried = said
        try:
            content = self._source.read()
            self._tell(file=digest_of(content))
            self._go(
                decode_release(
                    content, product=self._product, source=self._source.release_name
                )
            )
        except ObjectStoreError as error:
            self._tried = ""
            self._miss(error)
        except TollgateError as error:
            self._fail(str(error))
            pause_s = backoff_s(
                self.now.attempts, first_s=_RETRY_S, most_s=_MOST_RETRY_S
            )
            self._again_s = time.monotonic() + pause_s

    def _go(self, release: Release) -> None:
        active = self._serving.active
        if active is None or not _is_served(release, active):
            self._tell(desired=release.name, state="converging", doing="checking")
            self._require_same(release)
            log.info("%s: release %s is wanted", self._product, release.name)
            self._tell(doing="fetching")
            self._source.bring(release)
            self._tell(doing="checking")
            folder = self._source.folder
            require_sound(
                folder,
                product=self._product,
                config_name=self._config_name,
                release=release,  # release.json may have changed meanwhile
            )
            plan = plan_serving(folder, release, config_name=self._config_name)
            if active is None:
                self._told("loading")
                self._serving.begin(plan)
            else:
                self._serving.switch(plan, told=self._told)
            log.info("%s: release %s answers", self._product, release.name)
        else:
            self._source.bring(release)
        self.problem = ""
        self._tell(
            desired=release.name,
            running=self._serving.release,
            canary=canary_words(release),
            state="converged",
            doing="",
            attempts=0,
        )

    def _require_same(self, release: Release) -> None:
        """Fail if a release of the same name answers with other versions."""
        active = self._serving.active
        if active is None or active.release != release.name:
            return
        if active.versions != release.versions:
            problem = f"{release.name} answers already, with other versions"
            raise RepositoryError(self._source.release_name, problem, where="name")

    def _miss(self, error: ObjectStoreError) -> None:
        """Report that the repository cannot be reached; the served release stays."""
        if not self.now.unreachable:
            log.warning("%s: %s; what serves goes on", self._product, error)
        self._tell(unreachable=str(error))

    def _told(self, doing: str) -> None:
        self._tell(doing=doing)

    def _fail(self, why: str) -> None:
        attempts = self.now.attempts + 1
        self.problem = why
        if why != self._why:
            self._why = why
            log.error(
                "%s: release %s was not taken: %s", self._product, self._wanted(), why
            )
            self._refused(self._wanted(), why)
        self._tell(state="failed", doing=why, attempts=attempts)

    def _wanted(self) -> str:
        return self.now.desired or "of this repository"

    def _tell(self, **changes: object) -> None:
        before = self.now
        now = msgspec.structs.replace(before, **changes)
        if now.state != before.state or now.desired != before.desired:
            now = msgspec.structs.replace(now, since=now_text())
        self.now = now


def _is_served(release: Release, active: Line) -> bool:
    """Return whether the desired release already answers, including its canary."""
    canary = active.canary.challenger if active.canary else None
    return (
        release.name == active.release
        and release.versions == active.versions
        and canary_of(release) == canary
    )


def digest_of(content: bytes) -> str:
    """Compute the short SHA-256 of the content of a release.json."""
    return hashlib.sha256(content).hexdigest()[:SHORT_DIGITS]


def canary_words(release: Release) -> str:
    """Describe the canary of a release and its share, as in `Convergence.canary`."""
    canary = canary_of(release)
    return f"{canary.release} {canary.percent:g} %" if canary else ""

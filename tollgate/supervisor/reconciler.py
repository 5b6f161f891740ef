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
from tollgate.repository.hashes import SHORT_DIGITS
from tollgate.repository.lint.product_rules import require_sound
from tollgate.repository.releases.release_file import Release, decode_release
from tollgate.repository.releases.serving_plan import canary_of, plan_serving
from tollgate.repository.remote.repository_source import Source
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.loaded import LoadedRelease
from tollgate.server.serving.release_serving import Serving
from tollgate.supervisor.fault_log import now_text
from tollgate.worker import Worker, backoff_s

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
_RETRY_S, _MOST_RETRY_S = 2.0, 60.0

Progress = Literal["converged", "converging", "failed"]


class ReconcileStatus(msgspec.Struct, frozen=True):
    """
    The state of a server's reconciliation for one product.

    Attributes:
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
        unreachable: Reason reason the repository cannot be read; empty while it can.
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


class Reconciler:
    """
    Reconcile one product of a server with the release that its repository names.

    Args:
        serving: Record of what the server has loaded.
        config_name: Named configuration to use if a model has it.
        problem: Reason why no release of the product is loaded yet; empty if one is.
        on_failure: Called with release and reason when a release could not be loaded,
            once for each reason.

    Attributes:
        status: Current state of the reconciliation.
        problem: Reason reason the last desired release could not be loaded; empty if it
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
        on_failure: Callable[[str, str], None] = lambda release, reason: None,
    ) -> None:
        self._serving = serving
        self._source = source
        self._product = product
        self._config_name = config_name
        self._on_failure = on_failure
        self._tried = ""  # the repository's answer at the last attempt
        self._retry_at_s = 0.0
        self._logged_reason = ""  # the reason that was logged last
        self.problem = problem
        self._worker = Worker(
            f"converge-{product}",
            self.reconcile,
            pause_s=INTERVAL_S,
            most_pause_s=_MOST_RETRY_S,
            failed=lambda error: self._fail(f"unforeseen: {error!r}"),
            gentle=True,  # serving processes have priority
        )
        state: Progress = "failed" if problem else "converged"
        running = serving.release
        self.status = ReconcileStatus(
            product, running, running, state, problem, since=now_text()
        )

    def start(self) -> None:
        """Start to follow the repository."""
        self._worker.start()

    def stop(self) -> None:
        """Stop following the repository, after a switch in progress has ended."""
        self._worker.stop()

    def reconcile(self) -> None:
        """Read the repository once, and switch to the release that it names."""
        try:
            observed = self._source.look()
        except ObjectStoreError as error:
            self._report_unreachable(error)
            return
        if self.status.unreachable:
            log.info("%s: the repository can be read again", self._product)
            self._update(unreachable="")
        unchanged = observed == self._tried and self.status.state == "converged"
        paused = observed == self._tried and time.monotonic() < self._retry_at_s
        if unchanged or (paused and self.status.state == "failed"):
            return
        if observed != self._tried:
            self._logged_reason = ""
            self._update(desired="", attempts=0, state="converging", doing="checking")
        self._tried = observed
        try:
            content = self._source.read()
            self._update(file=digest_of(content))
            self._apply(
                decode_release(
                    content, product=self._product, source=self._source.release_name
                )
            )
        except ObjectStoreError as error:
            self._tried = ""
            self._report_unreachable(error)
        except TollgateError as error:
            self._fail(str(error))
            pause_s = backoff_s(
                self.status.attempts, first_s=_RETRY_S, most_s=_MOST_RETRY_S
            )
            self._retry_at_s = time.monotonic() + pause_s

    def _apply(self, release: Release) -> None:
        active = self._serving.active
        if active is None or not _is_served(release, active):
            self._update(desired=release.name, state="converging", doing="checking")
            self._require_same_versions(release)
            log.info("%s: release %s is desired", self._product, release.name)
            self._update(doing="fetching")
            self._source.bring(release)
            self._update(doing="checking")
            snapshot = RepositorySnapshot(
                self._source.folder, config_name=self._config_name
            )
            # Name the release: release.json may have changed meanwhile.
            require_sound(snapshot, product=self._product, release=release)
            plan = plan_serving(snapshot, release, form=self._serving.form)
            if active is None:
                self._report_action("loading")
                self._serving.begin(plan)
            else:
                self._serving.switch(plan, progress=self._report_action)
            log.info("%s: release %s answers", self._product, release.name)
        else:
            self._source.bring(release)
        self.problem = ""
        self._update(
            desired=release.name,
            running=self._serving.release,
            canary=describe_canary(release),
            state="converged",
            doing="",
            attempts=0,
        )

    def _require_same_versions(self, release: Release) -> None:
        """Fail if a release of the same name answers with other versions."""
        active = self._serving.active
        if active is None or active.release != release.name:
            return
        if active.versions != release.versions:
            problem = f"{release.name} answers already, with other versions"
            raise RepositoryError(self._source.release_name, problem, where="name")

    def _report_unreachable(self, error: ObjectStoreError) -> None:
        """Report that the repository cannot be reached; the served release stays."""
        if not self.status.unreachable:
            log.warning("%s: %s; the served release stays", self._product, error)
        self._update(unreachable=str(error))

    def _report_action(self, doing: str) -> None:
        self._update(doing=doing)

    def _fail(self, reason: str) -> None:
        attempts = self.status.attempts + 1
        self.problem = reason
        if reason != self._logged_reason:
            self._logged_reason = reason
            log.error(
                "%s: release %s was not loaded: %s",
                self._product,
                self._desired_name(),
                reason,
            )
            self._on_failure(self._desired_name(), reason)
        self._update(state="failed", doing=reason, attempts=attempts)

    def _desired_name(self) -> str:
        return self.status.desired or "of this repository"

    def _update(self, **changes: object) -> None:
        before = self.status
        now = msgspec.structs.replace(before, **changes)
        if now.state != before.state or now.desired != before.desired:
            now = msgspec.structs.replace(now, since=now_text())
        self.status = now


def _is_served(release: Release, active: LoadedRelease) -> bool:
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


def describe_canary(release: Release) -> str:
    """Describe the canary of a release and its share, for `ReconcileStatus`."""
    canary = canary_of(release)
    return f"{canary.release} {canary.percent:g} %" if canary else ""

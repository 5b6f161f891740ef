"""
Read the files that the console shows: history, trials, drift, faults, documents.

Each file is read again only after it changed, and lists are cut to their newest
entries, so a poll costs a few `stat` calls.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tollgate.challenger.trial_report import ReleaseSummary, make_report
from tollgate.challenger.trials import Trial, current_trials, folder_of, load, path_of
from tollgate.console.live_figures import parse_labels
from tollgate.errors import TollgateError
from tollgate.policy import POLICY_FILE
from tollgate.repository.gate_limits import Gates, gates_path, read_gates
from tollgate.repository.releases.release_file import release_path
from tollgate.repository.releases.release_history import (
    Entry,
    history_path,
    read_history,
    releases_of,
)
from tollgate.repository.slo import SLO_FILE, Slo, read_slo
from tollgate.schema import DEFAULT_OUTCOMES, outcomes_problem
from tollgate.supervisor.fault_log import FAULTS_FILE, Fault, read_faults

MOST_ENTRIES = 50
MOST_FAULTS = 50
_MINUTE_S = 60
MONITOR_REPORT = "monitor.html"
MONITOR_METRICS = "monitor.prom"
DOCUMENTS = {
    "card.html": "model card",
    "parity.json": "parity report",
    "parity.png": "parity plot",
    "artifact.json": "artifact",
}
_DRIFT = re.compile(r"tollgate_monitor_(\w+)\{(.*)\} (\S+)")

T = TypeVar("T")


class HistoryEntry(msgspec.Struct, frozen=True):
    """An entry of the release history, for people to read."""

    time: str
    action: str
    release: str
    actor: str
    approver: str
    reason: str
    versions: dict[str, int]


class Document(msgspec.Struct, frozen=True):
    """A document of a release's version, with the address that serves it."""

    name: str
    model: str
    version: int
    href: str


class Gate(msgspec.Struct, frozen=True):
    """One gate of a trial; `found`, `low` and `high` are None while unknown."""

    gate: str
    state: str
    found: float | None
    low: float | None
    high: float | None
    limit: float
    rows: int


class Arm(msgspec.Struct, frozen=True):
    """One of two compared releases: rows and shares by outcome, 0 to 1."""

    release: str
    rows: int
    shares: dict[str, float | None]
    errors: float | None
    degraded: float | None
    p99_ms: float | None


class TrialSummary(msgspec.Struct, frozen=True):
    """A trial: both releases, the rows that both decided, and the gates."""

    mode: str
    began: str
    percent: float
    rows: int
    flips: float | None
    champion: Arm
    challenger: Arm
    gates: list[Gate]


class DriftColumn(msgspec.Struct, frozen=True):
    """The newest window of one column: drifted or not, PSI, shift and missing share."""

    release: str
    window: str
    kind: str
    name: str
    drifted: bool
    psi: float | None
    sigmas: float | None
    missing: float | None


class DriftReport(msgspec.Struct, frozen=True):
    """
    The monitor's last report of a product.

    Attributes:
        looked_s: Time of the look, s since the epoch; None if it did not look yet.
        decided_s: Time of the newest decision that it read, s since the epoch.
        windows: Judged and drifted windows: (release, kind, judged, drifted).
        href: Address of the HTML report; empty if there is none.
    """

    looked_s: float | None
    decided_s: float | None
    windows: list[tuple[str, str, int, int]]
    columns: list[DriftColumn]
    href: str


class _PolicyWords(msgspec.Struct, frozen=True):
    outcomes: tuple[str, ...] = DEFAULT_OUTCOMES.words


class FileCache:
    """Remember results that were computed from files, until one of them changes."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[object, Any]] = {}

    def get(
        self, key: str, paths: list[Path], read: Callable[[], T], *, also: object = None
    ) -> T:
        """Return the result of `read`; read again after a path or `also` changed."""
        state = (also, *(_state_of(path) for path in paths))
        known = self._found.get(key)
        if known is None or known[0] != state:
            known = (state, read())
            self._found[key] = known
        result: T = known[1]
        return result


class ProductRecords:
    """
    Read what files say about products.

    Args:
        repository: The model repository, a folder.
        state: The state folder of the server.
    """

    def __init__(self, repository: Path, state: Path) -> None:
        self._repository = repository
        self._state = state
        self._cache = FileCache()
        self._known: dict[str, list[Entry]] = {}

    def history(self, product: str) -> list[HistoryEntry]:
        """Return the newest entries of a product's release history, newest first."""
        return [_entry(one) for one in reversed(self._entries(product)[-MOST_ENTRIES:])]

    def documents(self, product: str) -> dict[str, list[Document]]:
        """List cards and reports of the versions of each release in the history."""
        releases = releases_of(self._entries(product)[-MOST_ENTRIES:])
        return {
            name: [
                document
                for model, version in release.versions.items()
                for document in self._documents_of(model, version)
            ]
            for name, release in releases.items()
        }

    def document(self, model: str, version: int, *, name: str) -> bytes | None:
        """Read a document of a version; None if no version has it."""
        if name not in DOCUMENTS or not re.fullmatch(r"[\w.-]+", model):
            return None
        path = self._repository / model / str(version) / name
        if self._repository.resolve() not in path.resolve().parents:
            return None
        return _read(path)

    def monitor_report(self) -> bytes | None:
        """Read the monitor's HTML report; None if there is none."""
        return _read(self._state / MONITOR_REPORT)

    def words(self, product: str) -> tuple[str, ...]:
        """Return the outcomes of a product, the mildest first."""
        entries = self._entries(product)
        if not entries:
            return DEFAULT_OUTCOMES.words
        paths = [
            self._repository / step / str(version) / POLICY_FILE
            for step, version in entries[-1].release.versions.items()
        ]
        return self._cache.get(f"words {product}", paths, lambda: _words_of(paths))

    def slo(self, product: str) -> Slo:
        """Return the latency objectives of a product; the defaults if unreadable."""
        path = self._repository / product / SLO_FILE
        return self._cache.get(f"slo {product}", [path], lambda: self._slo(product))

    def trials(self, product: str, *, now_s: float) -> list[TrialSummary]:
        """
        Summarize the current trials of a product.

        Args:
            now_s: Seconds since the epoch.

        Raises:
            TollgateError: A file of the repository or of the trial cannot be read.
        """
        folder = folder_of(self._state, product)
        watched = [gates_path(self._repository, product), *self._release_files(product)]
        gates = self._cache.get(
            f"gates {product}",
            watched,
            lambda: read_gates(self._repository, product=product),
        )
        trials = self._cache.get(
            f"trials {product}",
            watched,
            lambda: current_trials(
                self._repository, product=product, watch_s=gates.watch_s, now_s=now_s
            ),
            also=now_s // _MINUTE_S,  # a watch ends by itself
        )
        return [
            self._cache.get(
                f"trial {product} {one.mode}",
                [path_of(folder, one), *watched],
                partial(_summary, folder, one, gates),
            )
            for one in trials
        ]

    def drift(self, product: str) -> DriftReport | None:
        """Return the monitor's last report of a product; None if there is none."""
        paths = [self._state / MONITOR_METRICS, self._state / MONITOR_REPORT]
        reports = self._cache.get("drift", paths, self._read_drift)
        return reports.get(product)

    def faults(self) -> list[Fault]:
        """Return the newest faults of the server, newest first."""
        return self._cache.get(
            "faults",
            [self._state / FAULTS_FILE],
            lambda: read_faults(self._state)[: -MOST_FAULTS - 1 : -1],
        )

    def _entries(self, product: str) -> list[Entry]:
        """Read the history of a product; the last known one if it cannot be read."""

        def entries() -> list[Entry]:
            with contextlib.suppress(TollgateError):
                self._known[product] = read_history(self._repository, product)
            return self._known.get(product, [])

        return self._cache.get(
            f"entries {product}", self._release_files(product), entries
        )

    def _release_files(self, product: str) -> list[Path]:
        return [
            history_path(self._repository, product),
            release_path(self._repository, product),
        ]

    def _documents_of(self, model: str, version: int) -> list[Document]:
        folder = self._repository / model / str(version)
        return self._cache.get(
            f"documents {model} {version}",
            [folder],
            lambda: [
                Document(
                    text, model, version, f"/console/files/{model}/{version}/{name}"
                )
                for name, text in DOCUMENTS.items()
                if (folder / name).is_file()
            ],
        )

    def _slo(self, product: str) -> Slo:
        try:
            return read_slo(self._repository, product=product)
        except TollgateError:
            return Slo()

    def _read_drift(self) -> dict[str, DriftReport]:
        content = _read(self._state / MONITOR_METRICS)
        if content is None:
            return {}
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for line in content.decode("utf-8", "replace").splitlines():
            parsed = _DRIFT.fullmatch(line)
            if parsed is None:
                continue
            labels = parse_labels(parsed[2])
            key = (parsed[1], *(labels.get(one, "") for one in _COLUMN))
            found.setdefault(labels.get("product", ""), {})[key] = float(parsed[3])
        has_report = (self._state / MONITOR_REPORT).is_file()
        href = "/console/files/monitor.html" if has_report else ""
        return {product: _drift(values, href) for product, values in found.items()}


_COLUMN = ("release", "window", "kind", "name")


def _drift(values: dict[tuple[str, ...], float], href: str) -> DriftReport:
    def value(name: str, column: tuple[str, ...] = ("",) * 4) -> float | None:
        return values.get((name, *column))

    judged = [key[1:] for key in values if key[0] == "judged_windows"]
    columns = [
        _drift_column(key[1:], value) for key in values if key[0] == "missing_share"
    ]
    return DriftReport(
        looked_s=value("last_look_timestamp_seconds") or None,
        decided_s=value("last_decision_timestamp_seconds") or None,
        windows=[
            (
                one[0],
                one[1],
                int(value("judged_windows", one) or 0),
                int(value("drifted_windows", one) or 0),
            )
            for one in judged
        ],
        columns=sorted(
            columns, key=lambda one: (not one.drifted, -(one.psi or 0.0), one.name)
        ),
        href=href,
    )


def _drift_column(
    column: tuple[str, ...], value: Callable[[str, tuple[str, ...]], float | None]
) -> DriftColumn:
    release, window, kind, name = column
    return DriftColumn(
        release=release,
        window=window,
        kind=kind,
        name=name,
        drifted=value("drift", column) == 1,
        psi=value("psi", column),
        sigmas=value("shift_sigmas", column),
        missing=value("missing_share", column),
    )


def _words_of(policies: list[Path]) -> tuple[str, ...]:
    """Return the outcomes of the first of these policies that can be read."""
    for path in policies:
        content = _read(path)
        if content is None:
            continue
        try:
            found = msgspec.yaml.decode(content, type=_PolicyWords).outcomes
        except (msgspec.MsgspecError, ValueError):
            continue
        if not outcomes_problem(found):
            return found
    return DEFAULT_OUTCOMES.words


def _entry(entry: Entry) -> HistoryEntry:
    trial = entry.release.challenger
    is_trial = entry.action.startswith("challenger") and trial is not None
    return HistoryEntry(
        time=entry.time,
        action=entry.action,
        release=trial.release if is_trial and trial else entry.release.name,
        actor=entry.actor,
        approver=entry.approver or "",
        reason=entry.reason,
        versions=dict(entry.release.versions),
    )


def _summary(folder: Path, trial: Trial, gates: Gates) -> TrialSummary:
    report = make_report(load(folder, trial), gates)
    whole = next(iter(report.parts), None)
    return TrialSummary(
        mode=report.trial.mode,
        began=report.trial.began,
        percent=report.trial.percent,
        rows=report.rows,
        flips=_number(whole.flips.value) if whole else None,
        champion=_arm(report.champion),
        challenger=_arm(report.challenger),
        gates=[
            Gate(
                gate=one.gate,
                state=one.state,
                found=_number(one.found.value),
                low=_number(one.found.low),
                high=_number(one.found.high),
                limit=one.limit,
                rows=one.rows,
            )
            for one in report.verdicts
        ],
    )


def _arm(side: ReleaseSummary) -> Arm:
    return Arm(
        release=side.release,
        rows=side.rows,
        shares={name: _number(one.value) for name, one in side.shares.items()},
        errors=_number(side.errors.value),
        degraded=_number(side.degraded.value),
        p99_ms=_number(side.p99_ms.value),
    )


def _number(value: float) -> float | None:
    """Return a finite number; None for one that JSON does not have."""
    return value if abs(value) < float("inf") else None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file's content; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

"""What is on trial now: a challenger, a release that was just promoted, or both."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from tollgate.challenger.kept import Trial
from tollgate.repository.history import Entry, last_change, read_history
from tollgate.repository.release import Release


def current_trials(
    repository: Path, *, product: str, watch_s: float, now_s: float
) -> list[Trial]:
    """
    List what is on trial.

    Args:
        repository: The model repository.
        product: The ensemble.
        watch_s: How long a promoted release is watched.
        now_s: The wall clock, s since the epoch.

    Raises:
        RepositoryError: The history cannot be read.
    """
    entries = read_history(repository, product)
    if not entries:
        return []
    trials = []
    release = entries[-1].release
    if release.challenger is not None:
        trials.append(trial_of(release))
    promotion = _promotion(entries)
    if promotion is not None and now_s - seconds_of(promotion.time) < watch_s:
        trials.append(watch_of(promotion))
    return trials


def trial_of(release: Release) -> Trial:
    """Describe the trial of a release's challenger."""
    challenger = release.challenger
    if challenger is None:
        raise ValueError(f"nobody is on trial beside {release.name}")
    return Trial(
        product=release.product,
        mode=challenger.mode,
        champion=release.name,
        challenger=challenger.release,
        began=challenger.time,
        percent=challenger.percent,
    )


def last_trial(
    entries: list[Entry], *, challenger: str, mode: Literal["shadow", "canary"]
) -> Trial | None:
    """
    Find the trial of a challenger that began last; None without one.

    By the order of the history: clocks are set, and differ from machine to machine.
    """
    for entry in reversed(entries):
        there = entry.release.challenger
        if there is not None and (there.release, there.mode) == (challenger, mode):
            return trial_of(entry.release)
    return None


def watch_of(promotion: Entry) -> Trial:
    """Describe the watch that follows a promotion."""
    return Trial(
        product=promotion.release.product,
        mode="watch",
        champion=promotion.origin or "",
        challenger=promotion.release.name,
        began=promotion.time,
    )


def _promotion(entries: list[Entry]) -> Entry | None:
    """Find what made the release that answers do so, if that was a promotion."""
    last = last_change(entries)
    promoted = last is not None and last.action == "promote" and last.origin
    return last if promoted else None


def seconds_of(text: str) -> float:
    """Read RFC 3339 in UTC, as releases have it; s since the epoch."""
    moment = datetime.strptime(text.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")
    return moment.replace(tzinfo=timezone.utc).timestamp()

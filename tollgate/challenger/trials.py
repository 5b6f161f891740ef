"""List current trials: a challenger, a recently promoted release, or both."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from tollgate.challenger.stored_counts import Trial
from tollgate.repository.releases.release_file import Release
from tollgate.repository.releases.release_history import (
    Entry,
    last_change,
    read_history,
)


def current_trials(
    repository: Path, *, product: str, watch_s: float, now_s: float
) -> list[Trial]:
    """
    List the current trials.

    Args:
        repository: Model repository.
        product: Ensemble of the trials.
        watch_s: Time in seconds that a promoted release is watched.
        now_s: Wall clock, s since the epoch.

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
    """Return the trial of a release's challenger."""
    challenger = release.challenger
    if challenger is None:
        raise ValueError(f"release {release.name} has no challenger")
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
    Return the trial of a challenger that started last; None without one.

    The order is that of the history: clocks get adjusted, and differ between machines.
    """
    for entry in reversed(entries):
        there = entry.release.challenger
        if there is not None and (there.release, there.mode) == (challenger, mode):
            return trial_of(entry.release)
    return None


def watch_of(promotion: Entry) -> Trial:
    """Return the watch that follows a promotion."""
    return Trial(
        product=promotion.release.product,
        mode="watch",
        champion=promotion.origin or "",
        challenger=promotion.release.name,
        began=promotion.time,
    )


def _promotion(entries: list[Entry]) -> Entry | None:
    """
    Return the promotion that activated the current release; None if it was no
    promotion.
    """
    last = last_change(entries)
    promoted = last is not None and last.action == "promote" and last.origin
    return last if promoted else None


def seconds_of(text: str) -> float:
    """Parse RFC 3339 in UTC, as releases store it; s since the epoch."""
    moment = datetime.strptime(text.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")
    return moment.replace(tzinfo=timezone.utc).timestamp()

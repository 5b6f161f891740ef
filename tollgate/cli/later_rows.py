"""Select later purchases of a history as held-out rows, with segments to report by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tollgate.features.spec import FeatureSpec
from tollgate.history import History

if TYPE_CHECKING:
    from converters.sample import Sample

_DAY_US = 86_400_000_000


def later_rows(
    history: History,
    features: npt.NDArray[np.float32],
    *,
    spec: FeatureSpec,
    train: npt.NDArray[np.bool_],
    judged: npt.NDArray[np.bool_],
    source: str,
) -> Sample:
    """
    Return purchases that a model was not trained on, as rows to judge it on.

    Segments: the amount; for each entity whether the history has an earlier purchase of
    it; and, where a feature counts its known frauds, whether there are any.

    Args:
        history: All purchases, in order of time.
        features: Features of each purchase; float32 [N, F].
        spec: Definitions of the features.
        train: True for purchases that were trained on; bool [N].
        judged: True for purchases to judge on, all later; bool [N]. Those without
            a known label are left out.
        source: Description of the origin of the purchases.
    """
    from converters.sample import Sample

    judged = judged & (history.label >= 0)
    time_us = history.event_time_us
    trained_until, since = int(time_us[train].max()), int(time_us[judged].min())
    days = [_day(since), _day(int(time_us[judged].max()))]
    gap = since // _DAY_US - trained_until // _DAY_US - 1
    segments = {}
    if spec.amount:
        amount = history.cents[judged] / 100
        segments["amount"] = tuple(f"{one:.2f}" for one in amount)
    for number, entity in enumerate(spec.entities):
        known = _seen_before(history.entity_id[entity.key])[judged]
        words = ("first purchase", "earlier purchases")
        segments[entity.name] = tuple(words[one] for one in known.astype(int))
        of_frauds = [
            one.name
            for one in spec.features
            if one.entity == number and one.aggregate in ("share", "flagged")
        ]
        if of_frauds:
            place = spec.feature_names.index(of_frauds[-1])
            words = ("none", "some")
            risky = features[judged, place] > 0
            title = f"known frauds of the {entity.name} ({of_frauds[-1]})"
            segments[title] = tuple(words[one] for one in risky.astype(int))
    return Sample(
        rows=features[judged],
        names=spec.feature_names,
        label=tuple(history.label[judged].tolist()),
        segments=segments,
        origin="held out",
        described=(
            f"{source} of {days[0]} to {days[1]}, {gap} whole days after the last one "
            "that it was trained on"
        ),
    )


def _seen_before(ids: object) -> npt.NDArray[np.bool_]:
    """Mark each row whose id an earlier row has too; bool [N]."""
    found = np.asarray(ids)
    _, first = np.unique(found, return_index=True)
    seen = np.ones(len(found), np.bool_)
    seen[first] = False
    return seen


def _day(time_us: int) -> str:
    return str(np.datetime64(time_us, "us").astype("M8[D]"))

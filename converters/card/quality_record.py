"""Record a model's quality on some rows; the model card is made from this record."""

from __future__ import annotations

from typing import Literal

import msgspec


class Levels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Decisions that thresholds alone derive from scores.

    Attributes:
        names: Names of the decisions, mildest first; one more than thresholds.
        thresholds: Scores at or above which the next decision is taken, ascending.
    """

    names: tuple[str, ...]
    thresholds: tuple[float, ...]


HALVES = Levels(names=("below 0.5", "0.5 or above"), thresholds=(0.5,))


class AtThreshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The rows whose score is at or above a threshold.

    Attributes:
        name: The decision that begins there.
        precision: Share of these rows that are positive; None when there are no rows.
        recall: Share of all positives that are among these rows.
    """

    name: str
    threshold: float
    rows: int
    precision: float | None
    recall: float


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Figures of a group of rows; None where there are too few rows.

    Attributes:
        name: Property that the rows share.
        positives: Number of rows of the positive class; None with more than two
            classes.
        decisions: Decision -> share of the rows; empty with more than two classes.
        auc: Area under the ROC curve; with more than two classes the mean of each
            class against the rest.
        interval: 95 % interval of the AUC (DeLong, on the logit scale); None with
            more than two classes, or when the AUC is exactly 0 or 1.
        average_precision: Average precision; two classes only.
        brier: Mean squared error of P(positive); two classes only.
        log_loss: Mean of -log P(true class), natural logarithm.
        at_thresholds: Figures for each threshold of the policy; two classes only.
        reason: Reason why figures are missing; empty when they are there.
    """

    name: str
    rows: int
    positives: int | None
    decisions: dict[str, float] = {}
    auc: float | None = None
    interval: tuple[float, float] | None = None
    average_precision: float | None = None
    brier: float | None = None
    log_loss: float | None = None
    at_thresholds: tuple[AtThreshold, ...] = ()
    reason: str = ""


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows divided by one column; every row is in exactly one group."""

    column: str
    groups: tuple[Group, ...]


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share, or a ratio of two shares, with its 95 % interval and number of rows."""

    share: float
    low: float
    high: float
    rows: int


class GroupErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Errors of a model on a group of rows; None where there are too few rows.

    Attributes:
        name: Property that the rows share.
        positives: Number of rows of the positive class.
        approved: Share below the first threshold.
        false_declines: Share of the negatives that reach the last threshold.
        false_approvals: Share of the positives below the first threshold.
        ratio: Ratio of `approved` to that of the reference; None for the reference
            itself.
        auc: AUC of these rows alone.
        interval: Its 95 % interval.
    """

    name: str
    rows: int
    positives: int
    approved: Rate | None
    false_declines: Rate | None
    false_approvals: Rate | None
    ratio: Rate | None
    auc: float | None = None
    interval: tuple[float, float] | None = None


class Sensitive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The rows divided by an attribute that is no feature.

    `reference` is the group that is approved most often, of those with enough rows.
    """

    column: str
    reference: str
    groups: tuple[GroupErrors, ...]


class Bin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The rows whose score lies in [low, high); for the last bin, in [low, high].

    Attributes:
        mean_score: Mean score of the rows; None when there are none.
    """

    low: float
    high: float
    rows: int
    positives: int
    mean_score: float | None


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Quality of a model on some rows.

    Attributes:
        classes: Class labels, in the order of the probabilities.
        positive: Label of the positive class; None with more than two.
        overall: All rows.
        segments: The same rows, divided.
        bins: All rows by score; empty with more than two classes.
        unanswered: Number of rows left out because the model's prediction is not a
            number.
        origin: `held out` for rows that the model was not trained on; `sample` for rows
            whose role in training is unknown.
        sensitive: The same rows, divided by attributes that the model does not see.
        unreported: Attributes that the policy calls sensitive, for which no data was
            supplied.
    """

    classes: tuple[int | str, ...]
    positive: int | str | None
    levels: Levels
    overall: Group
    segments: tuple[Segment, ...]
    bins: tuple[Bin, ...]
    unanswered: int = 0
    note: str = ""
    origin: Literal["held out", "sample"] = "sample"
    sensitive: tuple[Sensitive, ...] = ()
    unreported: tuple[str, ...] = ()

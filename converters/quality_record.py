"""What is known of a model's quality on some rows; a card is made from it."""

from __future__ import annotations

from typing import Literal

import msgspec


class Levels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    What scores are turned into, by thresholds alone.

    Attributes:
        names: Of the decisions, mildest first; one more than thresholds.
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
        threshold: The score.
        rows: How many rows.
        precision: Share of them that are positive; None when there are none.
        recall: Share of the positives that are among them.
    """

    name: str
    threshold: float
    rows: int
    precision: float | None
    recall: float


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Figures of some rows; None where there are too few to say.

    Attributes:
        name: What the rows have in common.
        rows: How many.
        positives: How many of them are of the positive class; None with more than
            two classes.
        decisions: Decision -> share of the rows; empty with more than two classes.
        auc: Area under the ROC curve; with more than two classes the mean of each
            class against the rest.
        interval: 95 % interval of the AUC (DeLong, on the logit scale); None with
            more than two classes, or when the AUC is exactly 0 or 1.
        average_precision: Two classes only.
        brier: Mean squared error of P(positive); two classes only.
        log_loss: Mean of -log P(true class), natural logarithm.
        at_thresholds: Per threshold of the policy; two classes only.
        reason: Why figures are missing; empty when they are there.
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
    """The rows divided by one column; its groups hold each row once."""

    column: str
    groups: tuple[Group, ...]


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share, or a ratio of two, of so many rows; with its 95 % interval."""

    share: float
    low: float
    high: float
    rows: int


class GroupErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    How a model errs about some rows; None where there are too few to say.

    Attributes:
        name: What the rows have in common.
        rows: How many.
        positives: How many of them are of the positive class.
        approved: Share below the first threshold.
        false_declines: Share of the others that reach the last threshold.
        false_approvals: Share of the positives that are below the first.
        ratio: Of `approved` to that of the reference; None for the reference itself.
        auc: Of these rows alone.
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
    The rows whose score lies in [low, high), the last bin's in [low, high].

    Attributes:
        low: Lower bound.
        high: Upper bound.
        rows: How many rows.
        positives: How many of them are positive.
        mean_score: Of the rows; None when there are none.
    """

    low: float
    high: float
    rows: int
    positives: int
    mean_score: float | None


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    How good a model is on some rows.

    Attributes:
        classes: Class labels, in the order of the probabilities.
        positive: Label of the positive class; None with more than two.
        levels: What scores are turned into.
        overall: All rows.
        segments: The same rows, divided.
        bins: All rows by score; empty with more than two classes.
        unanswered: Rows left out because the model's answer is not a number.
        note: What the rows are, in words.
        origin: `held out` for rows that the model was not trained on; `sample` for rows
            of which nobody knows that.
        sensitive: The same rows, divided by what the model is never shown.
        unreported: Attributes that the policy calls sensitive and nobody handed in.
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

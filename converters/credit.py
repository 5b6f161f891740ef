"""Train the credit product on applications that the simulator generates."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from converters.baseline import train_baseline
from converters.conversion import convert_model
from converters.converted import Converted
from converters.purpose import Purpose
from converters.sample import Sample
from converters.sources.worker import model_of
from tollgate.features.offline import build
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.history import history_of

if TYPE_CHECKING:
    import polars as pl

# The direction in which each feature may move the score: a reason given to an applicant
# must be true in the direction in which it is stated.
MONOTONE = MappingProxyType(
    {
        "income": -1,
        "debt_payments": 1,
        "debt_burden": 1,
        "loan_burden": 1,
        "employment_years": -1,
        "credit_years": -1,
        "utilization": 1,
        "delinquencies": 1,
        "inquiries": 1,
    }
)


def train_credit(
    frame: pl.DataFrame,
    *,
    spec: FeatureSpec,
    purpose: Purpose,
    held_out: int,
) -> Converted:
    """
    Train, convert and prove a model; the last rows are held out to evaluate it.

    Args:
        frame: Applications in the order of time, with `label`, and the attributes that
            the policy calls sensitive.

    Raises:
        InputError: The table lacks a column, or cannot be trained on.
        ConversionError: The trained model cannot be served faithfully.
    """
    history = history_of(frame, spec=spec, source="applications")
    features = build(spec, history).astype(np.float32)
    train = slice(0, len(frame) - held_out)
    evaluation = frame[len(frame) - held_out :]
    model = train_baseline(
        features[train],
        history.label[train],
        spec=spec,
        seed=0,
        monotone=MONOTONE,
    )
    sensitive = tuple(one for one in purpose.sensitive if one in frame.columns)
    return convert_model(
        model_of(model),
        origin="the trained pipeline",
        purpose=purpose,
        sample=Sample(
            rows=features[len(frame) - held_out :],
            names=spec.feature_names,
            label=tuple(history.label[len(frame) - held_out :].tolist()),
            segments={
                one: tuple(map(str, evaluation[one].to_list())) for one in sensitive
            },
            sensitive=sensitive,
            origin="held out",
        ),
    )

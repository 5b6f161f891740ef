"""Write the first training script of a product."""

from __future__ import annotations

import json

from tollgate.product.plan import Plan

SCRIPT_FILE = "train.py"


def script_text(plan: Plan, *, kind: str) -> str:
    """
    Write train.py, which is next to the ensemble's configuration.

    Args:
        plan: The product.
        kind: Kind of the baseline.
    """
    asked = plan.asked
    reported = ", ".join(_literal(name) for name in asked.sensitive)
    return f'''\
"""
Train the model of `{asked.product}` and publish it as the next version.

    python {asked.product}/{SCRIPT_FILE} [TABLE]

What answers does not change by this; the last line says how to release it. The file is
yours: take other rows, another estimator, other parameters.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from converters.baseline import train_baseline
from converters.conversion import convert_model
from converters.folder import write_converted
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from sklearn.metrics import roc_auc_score
from tollgate.cli.pipeline import served_spec
from tollgate.cli.replaying import replay_newest
from tollgate.features.offline import build
from tollgate.product.rows import read_rows
from tollgate.product.splitting import split
from tollgate.server.model_trial import SourceAnswers
from tollgate.server.publishing import publish

REPOSITORY = Path(__file__).resolve().parent.parent
PRODUCT = {_literal(asked.product)}
TABLE = Path({_literal(str(asked.table.resolve()))})
# The score is the probability that {asked.label!r} is this.
POSITIVE = {_literal(plan.label.positive)}
LABEL_DELAY_US = {asked.label_delay_us:_}  # how long after a row its outcome is known
SENSITIVE = [{reported}]  # no inputs: the card tells the model's errors by them


def main() -> None:
    """Train, convert, prove, publish."""
    table = Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE
    spec = served_spec(REPOSITORY, product=PRODUCT)
    rows = read_rows(
        table,
        spec=spec,
        positive=POSITIVE,
        segments=SENSITIVE,
        label_delay_us=LABEL_DELAY_US,
    )
    features = build(spec, rows.history).astype(np.float32)
    label = rows.history.label
    train, test = split(
        label,
        time_us=rows.history.event_time_us,
        spec=spec,
        label_delay_us=LABEL_DELAY_US,
    )

    model = train_baseline(
        features[train], label[train], spec=spec, seed=0, kind="{kind}"
    )
    score = model.predict_proba(features[test])[:, 1]
    auc = roc_auc_score(label[test], score)
    print(f"AUC {{auc:.4f}} on {{test.sum():,}} held-out rows")

    if spec.entities:
        count = replay_newest(spec, rows.history)
        print(f"{{count:,}} vectors online = offline in every bit")

    converted = convert_model(
        model_of(model),
        origin="the trained model",
        purpose=purpose_of(REPOSITORY, PRODUCT),
        sample=Sample(
            rows=features[test],
            names=spec.feature_names,
            label=tuple(label[test].tolist()),
            segments={{
                name: tuple(np.array(values)[test])
                for name, values in rows.segments.items()
            }},
            sensitive=tuple(SENSITIVE),
            origin="held out",
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        write_converted(converted, Path(folder) / "model")
        asked = features[test][:1_000]
        published = publish(
            Path(folder) / "model",
            repository=REPOSITORY,
            product=PRODUCT,
            answers=SourceAnswers(
                rows=asked.astype(np.float64),
                probabilities=model.predict_proba(asked),
            ),
            progress=print,
        )
    print(
        f"published {{published.step}} version {{published.version}}; release it:\\n"
        f"tollgate release activate --product {{PRODUCT}} --repository {{REPOSITORY}} "
        f"--set model={{published.version}} --reason 'trained again'"
    )


if __name__ == "__main__":
    main()
'''


def _literal(text: str) -> str:
    """Format a text as Python source."""
    return json.dumps(text, ensure_ascii=not text.isprintable())

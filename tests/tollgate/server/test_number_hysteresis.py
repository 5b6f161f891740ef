"""Days to a failure, with hysteresis: a few readings in a row raise an alarm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.linear_model import LinearRegression

from converters.conversion import convert_model
from converters.folder import write_converted
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from tests.support.products import press_product
from tests.support.products.plain_product import release_first, write_product
from tollgate import Engine

POLICY = (
    press_product.POLICY.replace("labels: [fine, broken]", "labels: [days]")
    .replace("score: broken", "score: {value: days, worse: lower}")
    .replace("{review: 0.9, decline: 0.95}", "{review: 30, decline: 7}")
)
TEMPERATURES = [20.0, 71, 20, 72, 73, 71, 20, 20, 20, 20, 20, 20, 20]


def test_a_number_is_held_and_raised_like_a_probability(tmp_path: Path) -> None:
    """A machine has 100 days less one for each degree; 30 days are watched."""
    spec = write_product(
        tmp_path,
        spec_text=press_product.SPEC,
        policy_text=POLICY,
        store_deadline_ms=2_000,
    )
    for path in tmp_path.rglob("config.pbtxt"):
        text = path.read_text()
        for name in ("probabilities", "challenger_probabilities"):
            first, *others = text.split(f'"{name}"')
            others = [one.replace("[ 2 ]", "[ 1 ]", 1) for one in others]
            text = f'"{name}"'.join([first, *others])
        path.write_text(text)
    rows = np.random.default_rng(0).uniform(0, 60, (200, 2)).astype(np.float32)
    converted = convert_model(
        model_of(LinearRegression().fit(rows, 100.0 - rows[:, 0])),
        origin="the model",
        purpose=purpose_of(tmp_path, "press"),
        sample=Sample(rows=rows, names=spec.feature_names),
    )
    write_converted(converted, tmp_path / "press_model" / "1")
    release_first(tmp_path, spec)
    with Engine.open(tmp_path, product="press") as engine:
        found = [
            engine.decide(
                {
                    "transaction_id": [f"r{at}"],
                    "machine_id": ["m1"],
                    "event_time": [1_700_000_000_000_000 + at * 15_000_000],
                    "temperature": [temperature],
                }
            )
            for at, temperature in enumerate(TEMPERATURES)
        ]
    days = [float(one["score"][0]) for one in found]
    np.testing.assert_allclose(days, 100.0 - np.array(TEMPERATURES), atol=1e-4)
    # 29 days or fewer in three of five readings: from the fifth reading on, and until
    # the fifth reading after the last but two; 60 s are over by then.
    wanted = []
    for at in range(len(days)):
        low = sum(one <= 30 for one in days[max(0, at - 4) : at + 1])
        wanted.append("review" if low >= 3 else "approve")
    raised = wanted.index("review")
    held = range(raised, raised + 4)  # a minute has four readings
    wanted = ["review" if at in held else one for at, one in enumerate(wanted)]
    assert [str(one["decision"][0]) for one in found] == wanted
    assert "RAISED" in str(found[raised]["reason_codes"][0])
    assert "UNCONFIRMED" in str(found[1]["reason_codes"][0])

"""The policy that the first version has in its code is the one in policy.yaml."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loadtests.baseline.naive.rules import decide
from loadtests.baseline.standalone.history import FEATURES
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.policy import RowFacts, load_policy
from tollgate.policy import decide as decide_rows
from tollgate.schema import Decision, Degraded

CHECKOUT = Path(__file__).resolve().parents[3]
POLICY = CHECKOUT / "model_repository" / "fraud_decision" / "1" / "policy.yaml"
RISKS = ("terminal_risk_1d", "terminal_risk_7d")
ROWS = 5_000


def test_code_and_policy_file_decide_alike(spec: FeatureSpec) -> None:
    """Decision and reason codes, on rows drawn around every edge of the policy."""
    assert spec.feature_names == FEATURES
    draw = np.random.default_rng(7)
    features = np.zeros((ROWS, len(FEATURES)), np.float32)
    cents = draw.choice([999, 1_000, 29_999, 30_000, 49_999, 50_000, 100_000], ROWS)
    features[:, FEATURES.index("amount")] = cents / 100
    # The service has them before they are cut to float32.
    risks = draw.choice([0, 0.5, 0.9, 1], (2, ROWS))
    for name, risk in zip(RISKS, risks, strict=True):
        features[:, FEATURES.index(name)] = risk
    score = draw.choice(np.linspace(0, 1, 41).astype(np.float32), ROWS)
    stolen, new = draw.random((2, ROWS)) < 0.1
    decided = decide_rows(
        RowFacts(
            probabilities=np.stack([1 - score, score], axis=1),
            features=features,
            cents=cents.astype(np.int64),
            degraded=new * np.uint32(Degraded.COLD_START),
            event_time_us=np.full(ROWS, 10**15),
            list_hits=stolen.astype(np.uint32),
            fields={},
        ),
        policy=load_policy(POLICY, feature_names=FEATURES),
    )
    seen = set()
    for row in range(ROWS):
        named = dict(zip(FEATURES, features[row].tolist(), strict=True))
        named |= dict(zip(RISKS, risks[:, row].tolist(), strict=True))
        named["amount"] = cents[row] / 100
        level, reasons = decide(
            named, score=float(score[row]), stolen=bool(stolen[row]), new=bool(new[row])
        )
        wanted = decided.reason_codes[row].decode().split("|")
        assert level == Decision(decided.decision[row]).name.lower(), named
        assert sorted(reasons) == sorted(filter(None, wanted)), named
        seen.update(reasons)
    assert len(seen) == 7

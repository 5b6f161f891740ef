"""Random feature rows with a label that depends on them."""

import numpy as np


def training_rows(rows=3000, columns=15, *, seed=0, missing=0.0):
    """Make money, counts, shares and flags, and labels that depend on them."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, columns)).astype(np.float32)
    features[:, 0] = random.lognormal(3.5, 1, rows).round(2)
    features[:, 1] = random.integers(0, 2, rows)
    features[:, 2] = random.poisson(5, rows)
    features[:, 3] = random.integers(0, 5, rows) / 5
    margin = features[:, 0] / 40 + 3 * features[:, 3] + features[:, 2] / 5 - 6
    label = (random.random(rows) < 1 / (1 + np.exp(-margin))).astype(np.int8)
    features[random.random(features.shape) < missing] = np.nan
    return features, label

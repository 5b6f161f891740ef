"""Training rows that take a moment, a repository to publish to, and cards."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cards_made import Page

from converters.card import write_card
from tollgate.features.spec import load_spec

REPOSITORY = Path(__file__).parents[2] / "model_repository"
STEPS = ("fraud_features", "fraud_model", "fraud_decision")


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


@pytest.fixture(scope="session")
def rows():
    """Return features float32 [3000, 15] and labels."""
    return training_rows()


@pytest.fixture
def repository(tmp_path):
    """Copy the project's repository without its models and its release."""
    copy = tmp_path / "repository"
    for name in ("fraud", *STEPS):
        (copy / name).mkdir(parents=True)
        shutil.copy(REPOSITORY / name / "config.pbtxt", copy / name)
    for name in ("fraud_features", "fraud_decision"):
        shutil.copytree(
            REPOSITORY / name / "1",
            copy / name / "1",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    (copy / "fraud" / "1").mkdir()
    return copy


@pytest.fixture
def spec(repository):
    """Return the feature spec that the repository serves."""
    return load_spec(repository / "fraud_features" / "1" / "features.yaml")


@pytest.fixture
def written(tmp_path):
    """Write a card; return Markdown, HTML and the parsed page."""

    def write(*arguments, **named):
        markdown, html = write_card(tmp_path, *arguments, **named)
        assert [path.name for path in (markdown, html)] == ["card.md", "card.html"]
        text, page = markdown.read_text("utf-8"), html.read_text("utf-8")
        return text, page, Page(page)

    return write

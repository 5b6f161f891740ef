"""Training rows that take a moment, a repository to publish to, and cards."""

import shutil

import pytest

from converters.card.card import write_card
from tests.support.checkout import CHECKOUT
from tests.support.converters.model_cards import Page
from tests.support.converters.training_rows import training_rows
from tollgate.features.spec.feature_spec import load_spec

REPOSITORY = CHECKOUT / "model_repository"
STEPS = ("fraud_features", "fraud_model", "fraud_decision")


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

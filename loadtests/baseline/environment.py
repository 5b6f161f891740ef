"""What a service of the baseline finds in its environment."""

from __future__ import annotations

import os
from pathlib import Path

from tollgate.schema import STORE_URL_VARIABLE

FOLDER_VARIABLE = "BASELINE_FOLDER"  # where it may write
MODEL_VARIABLE = "BASELINE_MODEL"  # the model as XGBoost's JSON
REPOSITORY_VARIABLE = "BASELINE_REPOSITORY"


def store_url() -> str:
    """Tell where its Redis is."""
    return os.environ[STORE_URL_VARIABLE]


def folder() -> Path:
    """Tell where it may write."""
    return Path(os.environ[FOLDER_VARIABLE])


def model_path() -> Path:
    """Tell where the model is that XGBoost loads."""
    return Path(os.environ[MODEL_VARIABLE])


def repository() -> Path:
    """Tell where the model repository is."""
    return Path(os.environ[REPOSITORY_VARIABLE])

"""Read the environment variables of a baseline service."""

from __future__ import annotations

import os
from pathlib import Path

STORE_VARIABLE = "BASELINE_STORE"  # URL of the service's Redis
FOLDER_VARIABLE = "BASELINE_FOLDER"  # the folder for the service's files
MODEL_VARIABLE = "BASELINE_MODEL"  # path of the model: XGBoost's JSON, or ONNX
REPOSITORY_VARIABLE = "BASELINE_REPOSITORY"


def store_url() -> str:
    """Return the address of the service's Redis."""
    return os.environ[STORE_VARIABLE]


def folder() -> Path:
    """Return the folder for the service's files."""
    return Path(os.environ[FOLDER_VARIABLE])


def model_path() -> Path:
    """Return the path of the model that the service loads itself."""
    return Path(os.environ[MODEL_VARIABLE])


def repository() -> Path:
    """Return the path of the model repository."""
    return Path(os.environ[REPOSITORY_VARIABLE])

"""Copy one of the committed products into a repository of its own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[3] / "model_repository"


def copy_product(
    target: Path,
    product: str = "fraud",
    *,
    source: Path = REPOSITORY,
    without: Sequence[str] = (),
) -> Path:
    """
    Copy the folders of a product, without Python's cache files.

    Args:
        target: Repository that gets them; created if it is absent.
        source: Repository that has them.
        without: Patterns of files and folders to leave out.
    """
    leave = shutil.ignore_patterns("__pycache__", *without)
    target.mkdir(parents=True, exist_ok=True)
    for folder in (source / product, *source.glob(f"{product}_*")):
        shutil.copytree(folder, target / folder.name, ignore=leave)
    return target

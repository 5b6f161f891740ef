"""Write a converted model into a new folder, completely or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from converters.artifact import Artifact, write_artifact
from converters.card import write_card
from converters.converted import Converted
from converters.picture import draw
from converters.prune_picture import draw_sweep
from converters.record import artifact_of
from tollgate.errors import InputError
from tollgate.explanation import EXPLAIN_FILE, encode_explanation
from tollgate.repository.atomic import sync_directory
from tollgate.repository.made_from import MadeFrom
from tollgate.repository.onnx_model import MODEL_FILE

PARITY_FILE = "parity.json"
PICTURE_FILE = "parity.png"
SWEEP_FILE = "prune.png"


def require_new_folder(folder: Path) -> None:
    """Raise InputError unless a folder does not exist or is empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InputError(folder, "is there already and not empty; name a new folder")
    if not folder.resolve().parent.is_dir():
        raise InputError(folder, "its parent folder does not exist")


def write_converted(
    converted: Converted, folder: Path, *, made_from: MadeFrom | None = None
) -> Artifact:
    """
    Write the model, its record, its proof, its card and their pictures.

    Args:
        converted: The model.
        folder: Folder that does not exist or is empty.
        made_from: The files it was converted from; None for none.

    Returns:
        The record.

    Raises:
        ParityError: The model failed its proof.
        InputError: The folder is not empty, or cannot be written.
    """
    converted.proven.check()
    require_new_folder(folder)
    target = folder.resolve()
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name}.", dir=target.parent
        ) as name:
            staged = Path(name) / "staged"
            staged.mkdir()
            record = _write(converted, staged, made_from)
            sync_directory(staged)
            os.rename(staged, target)  # works if nothing or an empty folder is there
        sync_directory(target.parent)
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror}") from error
    return record


def _write(converted: Converted, staged: Path, made_from: MadeFrom | None) -> Artifact:
    (staged / MODEL_FILE).write_bytes(converted.model)
    explanation = converted.explanation
    other_files = {}
    if not explanation.reason:
        other_files[EXPLAIN_FILE] = encode_explanation(explanation)
    for name, content in other_files.items():
        (staged / name).write_bytes(content)
    record = artifact_of(converted, other_files=other_files, made_from=made_from)
    write_artifact(record, staged)
    proven = converted.proven
    text = msgspec.json.format(msgspec.json.encode(proven.reports), indent=2)
    (staged / PARITY_FILE).write_bytes(text + b"\n")
    draw(proven.comparisons, staged / PICTURE_FILE)
    if converted.sweep is not None:
        draw_sweep(converted.sweep, staged / SWEEP_FILE)
    write_card(staged, record, quality=converted.quality(), explanation=explanation)
    return record

"""Read the whole record of a converted model."""

from pathlib import Path

import msgspec

from tollgate.repository.models.artifact_file import ARTIFACT_FILE, Artifact


def read_record(version: Path) -> Artifact:
    """Decode artifact.json, fields for people included."""
    return msgspec.json.decode((version / ARTIFACT_FILE).read_bytes(), type=Artifact)

"""Describe the steps that a fused model runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

_MODEL_FILE = '''"""Serve the steps of a product as one model: the fused form."""

from tollgate.imports import import_gently

import_gently("tollgate.server.triton.fused_step")

from tollgate.server.triton.fused_step import {step}


class TritonPythonModel({step}):
    """All steps of a release; the parameter `fused` names their copies."""
'''


def model_file(*, ranks: bool) -> str:
    """Return the file that Triton starts a fused model with, as text."""
    return _MODEL_FILE.format(step="FusedRankingStep" if ranks else "FusedStep")


class FusedPart(msgspec.Struct, frozen=True):
    """
    One step of the ensemble.

    Attributes:
        step: Its name.
        slot: Folder of its version next to the model's folder.
        config: Its configuration, as JSON.
    """

    step: str
    slot: int
    config: str

    def arguments(self, folder: Path) -> dict[str, str]:
        """Return the arguments that Triton would pass to the step's `initialize`."""
        return {
            "model_name": self.step,
            "model_version": str(self.slot),
            "model_repository": str(folder / self.step),
            "model_config": self.config,
        }


class FusedParts(msgspec.Struct, frozen=True):
    """
    The steps of a product.

    Attributes:
        product: Name of the ensemble, for errors.
        inputs: Input of the ensemble -> its name in the first step, where they differ.
        challenger_slot: Folder of the challenger's model; 0 without a canary.
    """

    product: str
    features: FusedPart
    model: FusedPart
    decision: FusedPart
    inputs: Mapping[str, str] = {}
    challenger_slot: int = 0

"""
Start a model's steps anew while the server goes on.

Triton does not restart a dead stub, calls its model ready all the same, and takes a
load of an unchanged model for nothing to do. A load with a changed parameter starts
the steps anew, and the old ones answer until the new ones do. Unloading first would
take every ensemble of the model down with it.
"""

from __future__ import annotations

import json
from typing import Any

from tollgate.server import control
from tollgate.server.control import Reachable

GENERATION = "generation"  # a parameter that means nothing to a step
HEAL_S = 20.0


def renew(server: Reachable, model: str, *, timeout_s: float = HEAL_S) -> int:
    """
    Start all steps of a model anew, with the configuration that it runs.

    Args:
        server: The running server.
        model: The model.
        timeout_s: For the whole load.

    Returns:
        The generation it is now in; a server counts from 0.

    Raises:
        ServerError: Triton refused, or does not answer.
    """
    config = control.model_config(server, model)
    generation = generation_of(config) + 1
    parameters = config.setdefault("parameters", {})
    parameters[GENERATION] = {"string_value": str(generation)}
    text = json.dumps(config)
    control.load_model(server, model, config=text, timeout_s=timeout_s)
    return generation


def generation_of(config: dict[str, Any]) -> int:
    """Read how often a running configuration was renewed; 0 if never."""
    parameter = config.get("parameters", {}).get(GENERATION, {})
    return int(parameter.get("string_value", 0))

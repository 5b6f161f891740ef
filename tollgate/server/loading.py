"""Loading slots and ensembles into a Triton, in words that change nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate import schema
from tollgate.errors import ServerError
from tollgate.repository.configs import add_canary, merge, to_json
from tollgate.server import control, placement
from tollgate.server.control import Reachable
from tollgate.server.launcher import TritonServer
from tollgate.server.loaded import Line, Record, loaded_slots
from tollgate.server.probe import probe

log = logging.getLogger(__name__)

GENERATION = "generation"  # a parameter that means nothing to a step


class Loading:
    """
    Loads what a record says.

    Triton starts all slots of a step anew when any word of its configuration changed
    except the version policy. So a step is always loaded in the words of the record.

    Args:
        triton: The server.
    """

    def __init__(self, triton: Reachable) -> None:
        self._triton = triton
        self._gpu = placement.has_gpu()

    def step(
        self,
        record: Record,
        step: str,
        slots: Iterable[int],
        *,
        generation: int | None = None,
    ) -> None:
        """Load a step with some slots, in the words it was loaded with before."""
        if generation is None:
            generation = self._generation(step)
        config = _parse(record.configs[step])
        parameters = {GENERATION: str(generation)} if generation else None
        merged = merge(config, versions=slots, parameters=parameters)
        self._load(merged)

    def _generation(self, step: str) -> int:
        """Ask how often a step was renewed; one that is not loaded never was."""
        if not control.ready_versions(self._triton, step):
            return 0
        return generation_of(control.model_config(self._triton, step))

    def ensemble(self, record: Record, *, name: str, line: Line) -> None:
        """Load an ensemble over the slots of a line, under a name."""
        ensemble = _parse(record.ensemble)
        ensemble.name = name
        merged = merge(ensemble, pins=line.slots)
        if line.canary is not None:
            add_canary(merged, step=line.canary.step, version=line.canary.slot)
        self._load(merged)

    def _load(self, config: ModelConfig) -> None:
        placed = placement.placed(to_json(config), gpu=self._gpu)
        try:
            control.load_model(self._triton, config.name, config=placed)
        except ServerError as error:
            raise ServerError(config.name, f"did not load: {error.problem}") from error

    def renew(self, record: Record, step: str) -> None:
        """
        Start all slots of a step anew; the old ones answer until the new ones do.

        Triton does not restart a dead stub, calls its model ready all the same, and
        takes a load of an unchanged model for nothing to do. A load with a changed
        parameter starts the steps anew. Unloading first would take every ensemble of
        the model down with it. What is not loaded is loaded.

        Raises:
            ServerError: Triton refused, or does not answer.
        """
        if not control.ready_versions(self._triton, step):
            self.step(record, step, loaded_slots(record)[step])
            return
        running = control.model_config(self._triton, step)
        generation = generation_of(running) + 1
        self.step(record, step, _versions(running), generation=generation)

    def drop(self, name: str) -> None:
        """Unload a model, if it is there."""
        try:
            control.unload_model(self._triton, name)
        except ServerError as error:
            log.debug("%s", error)


def probe_whole(triton: TritonServer, product: str) -> str:
    """Prove that a product decides; say when it is degraded; the release's name."""
    proof = probe(triton, product)
    # The probes' made-up entities are always new ones, and they bring no fields.
    usual = schema.Degraded.COLD_START | schema.Degraded.FIELD_MISSING
    degraded = proof.degraded & ~usual
    if degraded:
        log.warning("%s is ready but degraded: %s", product, degraded.name)
    return proof.release


def generation_of(config: Mapping[str, Any]) -> int:
    """Read how often a running configuration was renewed; 0 if never."""
    parameter = config.get("parameters", {}).get(GENERATION, {})
    return int(parameter.get("string_value", 0))


def _versions(config: Mapping[str, Any]) -> list[int]:
    """Read which slots a running configuration keeps loaded."""
    specific = config.get("version_policy", {}).get("specific", {})
    return [int(number) for number in specific.get("versions", [])]


def require_release(triton: TritonServer, name: str, line: Line) -> None:
    found = probe_whole(triton, name)
    theirs = line.canary.challenger.release if line.canary else line.release
    if found not in (line.release, theirs):
        problem = f"answers as release {found or 'without a name'}, not {line.release}"
        raise ServerError(name, problem)


def _parse(config_json: str) -> ModelConfig:
    parsed: ModelConfig = json_format.Parse(config_json, ModelConfig())
    return parsed

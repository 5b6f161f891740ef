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
from tollgate.repository.rules import PYTHON_BACKEND
from tollgate.schema import public_name
from tollgate.server import control, placement
from tollgate.server.control import Reachable
from tollgate.server.launcher import TritonServer
from tollgate.server.loaded import Line, Record, loaded_slots
from tollgate.server.private_names import (
    REFUSING_VERSION,
    can_refuse,
    hide_instances,
    link_private,
    mark_direct_calls,
    refusing_ensemble,
)
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
        merged.name = self._link(step)
        if merged.name != step:
            hide_instances(merged, step)
            if merged.backend == PYTHON_BACKEND:
                mark_direct_calls(merged)
            self._make_refusing_version(step)
        self._load(merged)

    def _make_refusing_version(self, step: str) -> None:
        """
        Make the directory of the ensemble that refuses direct calls of a step.

        Triton must see it before it loads the step, whose copies are in the same
        folder: it would take a folder that changed later for a changed step.
        """
        folder = self._triton.own_repository
        if folder is not None:
            (folder / step / str(REFUSING_VERSION)).mkdir(parents=True, exist_ok=True)

    def _link(self, name: str) -> str:
        """Give a step or trial ensemble its private name, where the server has one."""
        folder, suffix = self._triton.own_repository, self._triton.private_suffix
        return link_private(folder, name, suffix=suffix) if folder else name

    def _generation(self, step: str) -> int:
        """Ask how often a step was renewed; one that is not loaded never was."""
        if not control.ready_versions(self._triton, step):
            return 0
        return generation_of(control.model_config(self._triton, step))

    def ensemble(self, record: Record, *, name: str, line: Line) -> None:
        """Load an ensemble over the slots of a line, under a name."""
        ensemble = _parse(record.ensemble)
        ensemble.name = name if name == record.product else self._link(name)
        merged = merge(ensemble, pins=line.slots)
        if line.canary is not None:
            add_canary(merged, step=line.canary.step, version=line.canary.slot)
        for step in merged.ensemble_scheduling.step:
            step.model_name = control.served_name(self._triton, step.model_name)
        self._load(merged)

    def refusals(self, record: Record) -> None:
        """Have the public names of steps refuse calls: one ensemble for each."""
        configs = {step: _parse(config) for step, config in record.configs.items()}
        python = [one for one in configs.values() if one.backend == PYTHON_BACKEND]
        for step, config in configs.items():
            mine = [one for one in python if one.name == step]
            able = [one for one in mine or python if can_refuse(one, config)]
            if not able or self._link(step) == step:
                continue
            by = able[-1]
            refusing = refusing_ensemble(
                config,
                by=by,
                name=self._link(by.name),
                version=record.active.slots[by.name],
            )
            try:
                self._load(refusing)
            except ServerError as error:
                # The step is out of reach either way; only the count is missing.
                log.warning("direct calls of %s are not counted: %s", step, error)

    def _load(self, config: ModelConfig) -> None:
        placed = placement.placed(to_json(config), gpu=self._gpu)
        try:
            control.load_model(self._triton, config.name, config=placed)
        except ServerError as error:
            name = public_name(config.name)
            problem = public_name(error.problem)
            raise ServerError(name, f"did not load: {problem}") from error

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
            control.unload_model(self._triton, control.served_name(self._triton, name))
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

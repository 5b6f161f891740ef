"""Load slots and ensembles into Triton without changing what else is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate import schema
from tollgate.errors import ServerError
from tollgate.repository.configs import add_canary, merge, to_json
from tollgate.repository.lint.product_rules import PYTHON_BACKEND
from tollgate.schema import public_name
from tollgate.server.serving.loaded import LoadedRelease, ServingRecord, loaded_slots
from tollgate.server.triton import control, placement
from tollgate.server.triton.control import Reachable
from tollgate.server.triton.launcher import TritonServer
from tollgate.server.triton.private_names import (
    REFUSING_VERSION,
    can_refuse,
    hide_instances,
    link_private,
    mark_direct_calls,
    refusing_ensemble,
)
from tollgate.server.triton.probe import probe

log = logging.getLogger(__name__)

# Suffix of the ensemble that a release is tried under. No product can have such a name.
TRIAL_SUFFIX = "--next"
GENERATION = "generation"  # a parameter that no step reads


class Loading:
    """
    Load models according to a record.

    Triton restarts all slots of a step when anything in its configuration changes
    except the version policy. So a step is always loaded with the configuration in the
    record.
    """

    def __init__(self, triton: Reachable) -> None:
        self._triton = triton
        self._gpu = placement.has_gpu()

    def step(
        self,
        record: ServingRecord,
        step: str,
        slots: Iterable[int],
        *,
        generation: int | None = None,
    ) -> None:
        """Load some slots of a step, with the configuration in the record."""
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

        It must exist before Triton loads the step, whose copies are in the same folder:
        if the folder changed later, Triton would take it for a changed step.
        """
        folder = self._triton.own_repository
        if folder is not None:
            (folder / step / str(REFUSING_VERSION)).mkdir(parents=True, exist_ok=True)

    def _link(self, name: str) -> str:
        """Return the private name of a step or trial ensemble; link it if needed."""
        folder, suffix = self._triton.own_repository, self._triton.private_suffix
        return link_private(folder, name, suffix=suffix) if folder else name

    def _generation(self, step: str) -> int:
        """Read how often a step was renewed; 0 for a step that is not loaded."""
        if not control.ready_versions(self._triton, step):
            return 0
        return generation_of(control.model_config(self._triton, step))

    def ensemble(
        self, record: ServingRecord, *, name: str, loaded: LoadedRelease
    ) -> None:
        """Load an ensemble over the slots of a release, under a name."""
        ensemble = _parse(record.ensemble)
        ensemble.name = name if name == record.product else self._link(name)
        merged = merge(ensemble, pins=loaded.slots)
        if loaded.canary is not None:
            add_canary(merged, step=loaded.canary.step, version=loaded.canary.slot)
        for step in merged.ensemble_scheduling.step:
            step.model_name = control.served_name(self._triton, step.model_name)
        self._load(merged)

    def refusals(self, record: ServingRecord) -> None:
        """Load the ensembles that refuse direct calls of steps and of the trial."""
        configs = {step: _parse(config) for step, config in record.configs.items()}
        python = [one for one in configs.values() if one.backend == PYTHON_BACKEND]
        for step, config in configs.items():
            mine = [one for one in python if one.name == step]
            able = [one for one in mine or python if can_refuse(one, config)]
            if able:
                self._refuse(step, config, by=able[-1], record=record)
        ensemble = _parse(record.ensemble)
        first = configs[ensemble.ensemble_scheduling.step[0].model_name]
        if first in python:
            trial = record.product + TRIAL_SUFFIX
            self._make_refusing_version(trial)
            self._refuse(trial, first, by=first, record=record)

    def _refuse(
        self, name: str, config: ModelConfig, *, by: ModelConfig, record: ServingRecord
    ) -> None:
        """Make a Python step refuse requests that are sent to a public name."""
        private = self._link(by.name)
        if private == by.name:
            return
        version = record.active.slots[by.name]
        refusing = refusing_ensemble(config, by=by, private=private, version=version)
        refusing.name = name
        try:
            self._load(refusing)
        except ServerError as error:
            # Callers cannot reach the model either way; only the count is missing.
            log.warning("direct calls of %s are not counted: %s", name, error)

    def _load(self, config: ModelConfig) -> None:
        placed = placement.placed(to_json(config), gpu=self._gpu)
        try:
            control.load_model(self._triton, config.name, config=placed)
        except ServerError as error:
            name = public_name(config.name)
            problem = public_name(error.problem)
            raise ServerError(name, f"did not load: {problem}") from error

    def renew(self, record: ServingRecord, step: str) -> None:
        """
        Restart all slots of a step; the old ones answer until the new ones do.

        Triton does not restart a dead stub, still reports its model as ready, and does
        nothing when an unchanged model is loaded. A load with a changed parameter
        restarts the step. An unload first would take every ensemble of the model down
        with it. A step that is not loaded is loaded.

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
        """Unload a model, if it is loaded."""
        try:
            control.unload_model(self._triton, control.served_name(self._triton, name))
        except ServerError as error:
            log.debug("%s", error)


def probe_whole(triton: TritonServer, product: str) -> str:
    """Probe a product; log if it is degraded; return the name of its release."""
    proof = probe(triton, product)
    # The probes' synthetic entities are always new, and the rows have no optional
    # fields.
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
    """Read which slots a running configuration loads."""
    specific = config.get("version_policy", {}).get("specific", {})
    return [int(number) for number in specific.get("versions", [])]


def require_release(triton: TritonServer, name: str, loaded: LoadedRelease) -> None:
    found = probe_whole(triton, name)
    theirs = loaded.canary.challenger.release if loaded.canary else loaded.release
    if found not in (loaded.release, theirs):
        problem = (
            f"answers as release {found or 'without a name'}, not {loaded.release}"
        )
        raise ServerError(name, problem)


def _parse(config_json: str) -> ModelConfig:
    parsed: ModelConfig = json_format.Parse(config_json, ModelConfig())
    return parsed

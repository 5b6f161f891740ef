"""
Serve a release as one model: make it from the release's parts when it is loaded.

The repository stays an ensemble of three steps. The fused model has the ensemble's
name, inputs and outputs; one parameter of its configuration names the copies of the
parts and their configurations. Another release is another value of it, so Triton starts
a new process next to the one that answers, and switches when that is ready.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tollgate import schema
from tollgate.repository.atomic import replace_file
from tollgate.repository.configs import merge, to_json
from tollgate.repository.lint.product_rules import PYTHON_BACKEND
from tollgate.repository.serving_form import queue_delay_us
from tollgate.server.serving.loaded import LoadedRelease, ServingRecord
from tollgate.server.serving.loading import GENERATION, Loading, generation_of
from tollgate.server.triton import control
from tollgate.server.triton.fused_parts import FusedPart, FusedParts, model_file
from tollgate.server.triton.private_names import hide_instances

VERSION = 1  # as of an ensemble, so that answers name the same version


def fused_config(
    record: ServingRecord, loaded: LoadedRelease, *, name: str
) -> ModelConfig:
    """Build the configuration of a release as one model, under a name."""
    ensemble = json_format.Parse(record.ensemble, ModelConfig())
    parts = fused_parts(record, loaded)
    fused = ModelConfig(
        name=name,
        backend=PYTHON_BACKEND,
        max_batch_size=ensemble.max_batch_size,
        input=ensemble.input,
        output=ensemble.output,
    )
    fused.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_CPU)
    delay_us = queue_delay_us(ensemble, source=record.product)
    fused.dynamic_batching.max_queue_delay_microseconds = delay_us
    parameters = {schema.FUSED_PARAMETER: msgspec.json.encode(parts).decode()}
    return merge(fused, versions=[VERSION], parameters=parameters)


def fused_parts(record: ServingRecord, loaded: LoadedRelease) -> FusedParts:
    """Describe the parts of a release."""
    configs = {
        step: json_format.Parse(text, ModelConfig())
        for step, text in record.configs.items()
    }

    def step_with(*outputs: str) -> str:
        return next(
            step
            for step, config in configs.items()
            if any(one.name in outputs for one in config.output)
        )

    def part(step: str) -> FusedPart:
        return FusedPart(step, loaded.slots[step], to_json(configs[step]))

    first = step_with(schema.CONTEXT)
    ensemble = json_format.Parse(record.ensemble, ModelConfig())
    (mapped,) = (
        one.input_map
        for one in ensemble.ensemble_scheduling.step
        if one.model_name == first
    )
    return FusedParts(
        product=record.product,
        features=part(first),
        model=part(step_with(schema.PROBABILITIES, schema.RELEVANCE)),
        decision=part(step_with("release")),
        inputs={ours: name for name, ours in mapped.items() if name != ours},
        challenger_slot=loaded.canary.slot if loaded.canary else 0,
    )


def ranks(record: ServingRecord) -> bool:
    """Return whether a release ranks items instead of deciding."""
    return any(
        one.name == schema.RELEVANCE
        for text in record.configs.values()
        for one in json_format.Parse(text, ModelConfig()).output
    )


class FusedLoading(Loading):
    """Load a release as one model: its parts are loaded with it, and not alone."""

    def step(
        self,
        record: ServingRecord,
        step: str,
        slots: Iterable[int],
        *,
        generation: int | None = None,
    ) -> None:
        """Do nothing: a part runs inside the model."""

    def refusals(self, record: ServingRecord) -> None:
        """Do nothing: no step can be called."""

    def ensemble(
        self, record: ServingRecord, *, name: str, loaded: LoadedRelease
    ) -> None:
        """Load the model of a release, under a name."""
        self._load_fused(record, name, loaded=loaded, generation=0)

    def renew(self, record: ServingRecord, step: str) -> None:
        """Restart the model; the old process answers until the new one does."""
        product, generation = record.product, 0
        if control.ready_versions(self._triton, product):
            running = control.model_config(self._triton, product)
            generation = generation_of(running) + 1
        self._load_fused(record, product, loaded=record.active, generation=generation)

    def _load_fused(
        self,
        record: ServingRecord,
        name: str,
        *,
        loaded: LoadedRelease,
        generation: int,
    ) -> None:
        self._write_model(name, ranks=ranks(record))
        served = name if name == record.product else self._link(name)
        config = fused_config(record, loaded, name=served)
        if generation:
            config.parameters[GENERATION].string_value = str(generation)
        if served != name:
            hide_instances(config, name)
        self._load(config)

    def _write_model(self, name: str, *, ranks: bool) -> None:
        """Write the file that Triton starts the model with."""
        folder = self._triton.own_repository
        assert folder is not None, "this server has copies of its own"
        version = folder / name / str(VERSION)
        version.mkdir(parents=True, exist_ok=True)
        path = version / "model.py"
        text = model_file(ranks=ranks)
        if not path.is_file() or path.read_text() != text:
            replace_file(path, text.encode())

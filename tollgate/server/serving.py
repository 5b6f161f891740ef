"""
What a server serves of a product, and how it goes from one release to the next.

    widen   load the new parts beside those that serve
    try     an ensemble of them under another name decides dry runs of 1, 8 and 32 rows
    switch  the product's ensemble is loaded anew: the new parts answer
    narrow  drop what neither this release nor the one before it needs

Requests are answered all the while. Whatever fails before the switch leaves the old
release as it was; what fails after it is switched back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate import schema
from tollgate.errors import ServerError
from tollgate.repository.atomic import replace_file
from tollgate.repository.configs import merge, to_json
from tollgate.repository.serving_plan import ServingPlan
from tollgate.repository.turns import one_at_a_time
from tollgate.server import control, placement
from tollgate.server.launcher import TritonServer
from tollgate.server.probe import probe
from tollgate.server.slots import Slots

log = logging.getLogger(__name__)

GENERATION = "generation"  # a parameter that means nothing to a step
# Of the ensemble that a release is tried under. No product can be called so.
TRIAL_SUFFIX = "--next"

# What may not change while both releases are loaded: they share a configuration.
_SHAPE = ("platform", "backend", "max_batch_size", "input", "output")


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A release as a server has it loaded.

    Attributes:
        release: Its name.
        versions: Version per step.
        slots: Slot per step.
    """

    release: str
    versions: dict[str, int]
    slots: dict[str, int]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    What is loaded, kept beside the copies: enough to load it all again.

    Attributes:
        product: Name of the ensemble.
        active: What answers.
        kept: What else stays loaded, the release before it.
        configs: Configuration per step, as JSON, without a version policy.
        ensemble: That of the ensemble, as JSON, without pins.
    """

    product: str
    active: Line
    kept: Line | None
    configs: dict[str, str]
    ensemble: str


class Serving:
    """
    One product on one running server.

    Args:
        triton: The server; it reads the slots and has loaded nothing.
        slots: Its copies.
        record: File in which to keep what is loaded.
    """

    def __init__(self, triton: TritonServer, slots: Slots, *, record: Path) -> None:
        self._triton = triton
        self._slots = slots
        self._path = record
        self._now: Record | None = None
        self._gpu = placement.has_gpu()

    @property
    def active(self) -> Line | None:
        """What answers; None before anything does."""
        return self._now.active if self._now else None

    def begin(self, plan: ServingPlan) -> str:
        """
        Load a release where nothing is loaded yet, and prove that it answers.

        Returns:
            The release, in the answer's words.

        Raises:
            RepositoryError: A file is not what the release says.
            ServerError: A part did not load, or the product does not answer.
        """
        self._slots.begin(plan.repository)
        record = _record(plan, self._place(plan, loaded={}), kept=None)
        answered = self._load_all(record)
        self._keep(record)
        return answered

    def again(self) -> str:
        """
        Load what was loaded, after the server was started anew.

        Raises:
            ServerError: Nothing was, or it does not load any more.
        """
        if self._now is None:
            raise ServerError("tritonserver", "nothing was loaded before")
        return self._load_all(self._now)

    def switch(self, plan: ServingPlan, *, told: Callable[[str], None]) -> None:
        """
        Go from the release that answers to another one, while requests are answered.

        Args:
            plan: The other one.
            told: Called with what is being done.

        Raises:
            RepositoryError: A file is not what the release says.
            ServerError: The new release does not load or does not answer, and the old
                one goes on; or the server is not there.
        """
        old = self._require()
        _require_shape(old, plan)
        with one_at_a_time(self._slots.folder):
            self._switch(plan, old, told=told)

    def _switch(
        self, plan: ServingPlan, old: Record, *, told: Callable[[str], None]
    ) -> None:
        told("copying")
        slots = self._place(plan, loaded=_loaded(old))
        new = _record(plan, slots, kept=old.active)
        told("loading")
        try:
            for step in slots:
                self._load_step(new, step, {*_loaded(old).get(step, ()), slots[step]})
            self._try(new)
            told("switching")
            self._switch_ensemble(new, back_to=old)
        except BaseException:
            self._restore(old)
            raise
        finally:
            self._drop_trial(new.product)
        self._keep(new)
        told("narrowing")
        self._narrow(new)

    def renew(self, step: str) -> None:
        """
        Start all slots of a step anew; the old ones answer until the new ones do.

        Triton does not restart a dead stub, calls its model ready all the same, and
        takes a load of an unchanged model for nothing to do. A load with a changed
        parameter starts the steps anew. Unloading first would take every ensemble of
        the model down with it.

        Raises:
            ServerError: Triton refused, or does not answer.
        """
        record = self._require()
        running = control.model_config(self._triton, step)
        versions = _versions(running)
        self._load_step(record, step, versions, generation=generation_of(running) + 1)

    def _require(self) -> Record:
        if self._now is None:
            raise ServerError("tritonserver", "has no release loaded")
        return self._now

    def _place(
        self, plan: ServingPlan, *, loaded: Mapping[str, Iterable[int]]
    ) -> dict[str, int]:
        self._slots.add_ensemble(plan.product)
        return {
            step: self._slots.place(
                part, repository=plan.repository, loaded=set(loaded.get(step, ()))
            )
            for step, part in plan.parts.items()
        }

    def _load_all(self, record: Record) -> str:
        for step, slots in _loaded(record).items():
            self._load_step(record, step, slots)
        self._load_ensemble(record, name=record.product, line=record.active)
        return probe_whole(self._triton, record.product)

    def _load_step(
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

    def _load_ensemble(self, record: Record, *, name: str, line: Line) -> None:
        ensemble = _parse(record.ensemble)
        ensemble.name = name
        self._load(merge(ensemble, pins=line.slots))

    def _load(self, config: ModelConfig) -> None:
        placed = placement.placed(to_json(config), gpu=self._gpu)
        try:
            control.load_model(self._triton, config.name, config=placed)
        except ServerError as error:
            raise ServerError(config.name, f"did not load: {error.problem}") from error

    def _try(self, new: Record) -> None:
        """Have an ensemble of the new parts decide, before anybody depends on it."""
        name = new.product + TRIAL_SUFFIX
        self._slots.add_ensemble(name)
        self._load_ensemble(new, name=name, line=new.active)
        _require_release(self._triton, name, new.active)

    def _switch_ensemble(self, new: Record, *, back_to: Record) -> None:
        self._load_ensemble(new, name=new.product, line=new.active)
        try:
            _require_release(self._triton, new.product, new.active)
        except ServerError:
            self._load_ensemble(back_to, name=new.product, line=back_to.active)
            raise

    def _restore(self, old: Record) -> None:
        """Drop what was loaded beside the old release; it answers either way."""
        for step, slots in _loaded(old).items():
            try:
                self._load_step(old, step, slots)
            except ServerError as error:
                log.warning("%s keeps what was loaded beside: %s", step, error)

    def _drop_trial(self, product: str) -> None:
        try:
            control.unload_model(self._triton, product + TRIAL_SUFFIX)
        except ServerError as error:
            log.debug("%s", error)

    def _narrow(self, record: Record) -> None:
        for step, slots in _loaded(record).items():
            try:
                self._load_step(record, step, slots)
            except ServerError as error:
                log.warning("%s keeps what is not needed any more: %s", step, error)
            else:
                self._slots.sweep(step, keep=slots)

    def _keep(self, record: Record) -> None:
        self._now = record
        encoded = msgspec.json.format(msgspec.json.encode(record), indent=2)
        replace_file(self._path, encoded + b"\n")

    def recall(self) -> bool:
        """
        Load what an earlier server of this folder served; False if there was nothing.

        Raises:
            ServerError: It does not load any more.
        """
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=Record)
        except (OSError, msgspec.MsgspecError):
            return False
        self._load_all(record)
        self._now = record
        return True


def probe_whole(triton: TritonServer, product: str) -> str:
    """Prove that a product decides; say when it is degraded; the release's name."""
    proof = probe(triton, product)
    # The probes' made-up entities are always new ones.
    degraded = proof.degraded & ~schema.Degraded.COLD_START
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


def _record(
    plan: ServingPlan, slots: Mapping[str, int], *, kept: Line | None
) -> Record:
    return Record(
        product=plan.product,
        active=Line(
            release=plan.release.name,
            versions=dict(plan.release.versions),
            slots=dict(slots),
        ),
        kept=kept,
        configs={step: to_json(config) for step, config in plan.configs.items()},
        ensemble=to_json(plan.ensemble),
    )


def _loaded(record: Record) -> dict[str, list[int]]:
    """List the slots of each step that a record keeps loaded."""
    lines = [record.active, *([record.kept] if record.kept else [])]
    return {
        step: sorted({line.slots[step] for line in lines if step in line.slots})
        for step in record.active.slots
    }


def _require_shape(old: Record, plan: ServingPlan) -> None:
    """Demand that both releases fit the same configurations."""
    if plan.configs.keys() != old.configs.keys():
        problem = "has other steps than the release that is loaded; start it anew"
        raise ServerError(plan.product, problem)
    for step, config in plan.configs.items():
        was, now = json.loads(old.configs[step]), json.loads(to_json(config))
        for key in _SHAPE:
            if was.get(key) != now.get(key):
                problem = f"{key} of config.pbtxt has changed; the server has to be"
                raise ServerError(step, f"{problem} started anew to serve it")


def _require_release(triton: TritonServer, name: str, line: Line) -> None:
    found = probe_whole(triton, name)
    if found != line.release:
        problem = f"answers as release {found or 'without a name'}, not {line.release}"
        raise ServerError(name, problem)


def _parse(config_json: str) -> ModelConfig:
    from google.protobuf import json_format

    parsed: ModelConfig = json_format.Parse(config_json, ModelConfig())
    return parsed

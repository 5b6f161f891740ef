"""
Try settings on a running server, and always restore the original ones.

Triton loads a step with other settings by load-with-override; no file is touched. The
original settings come from the server's record of the configurations that it loaded,
not from the running ones: so another process can restore them too, when this process
was killed.

The product stays in its form. The other form is loaded next to it, under the name that
a release is tried under, which no caller knows.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import ServerError
from tollgate.repository.atomic import lock_folder
from tollgate.repository.configs import to_json
from tollgate.repository.slo import Form
from tollgate.schema import FUSED_PARAMETER
from tollgate.server.address import Address
from tollgate.server.processes.state_lock import FolderLock
from tollgate.server.serving.fused_form import VERSION, FusedLoading, fused_config
from tollgate.server.serving.loaded import ServingRecord, loaded_slots, read_record
from tollgate.server.serving.loading import TRIAL_SUFFIX, Loading, generation_of
from tollgate.server.triton import control
from tollgate.server.triton.probe import ask_once
from tollgate.supervisor.stubs import find_stubs
from tollgate.tuning.settings import THREADS, Configs, Roles
from tollgate.tuning.space import Candidate

_DECIDES_S = 10.0
_SETTLE_S = 10.0
_PARAMETERS = (THREADS,)
_TRIES, _AGAIN_S = 5, 1.0  # to put back
_LOCK = "tune.lock"  # in the state folder: two tunings would undo each other's work


class Override:
    """
    The settings of one product on a server of this machine, until the context ends.

    The server's supervisor keeps running: if it activates a release or restarts a step
    while settings are tried, it replaces them. Both are noticed.

    Args:
        record: File in which the server records the configurations that it loaded.

    Attributes:
        form: Form in which the server serves the product.
        configs: Configuration of each step and of the ensemble, from the record.
        base: The settings in them.
        release: Release that the server serves.
        left: Models that ran with other settings, or in the other form, when the
            context began, because the process that tried them was killed. They were
            restored.
    """

    def __init__(self, server: Address, *, record: Path, roles: Roles) -> None:
        self._server = server
        self._path = record
        self._record = read_record(record)
        self.form: Form = "fused" if self._record.form == "fused" else "ensemble"
        self._product = self._record.product
        self._trial = self._product + TRIAL_SUFFIX
        self._roles = roles
        self._loading = Loading(server)
        self._fused = FusedLoading(server)
        texts = {**self._record.configs, self._product: self._record.ensemble}
        self.configs = {
            name: json_format.Parse(text, ModelConfig()) for name, text in texts.items()
        }
        self.base = roles.read(self.configs, form=self.form)
        self.release = self._record.active.release
        self.left: Sequence[str] = ()
        self._tried: set[str] = set()  # models that may run with other settings
        self._other_form = False  # may be loaded
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Override:
        with contextlib.ExitStack() as stack:
            lock = FolderLock(self._path.parent, name=_LOCK, patience_s=0.0)
            stack.callback(lock.release)
            with self._turn():
                differing = self._differing()
                others = self._loaded_of_other_form()
            self.left = [*differing, *others]
            self._tried.update(differing)
            self._other_form = bool(others)
            self._put_back()
            self._stack = stack.pop_all()
        return self

    def apply(self, candidate: Candidate) -> None:
        """
        Run the server with settings.

        Raises:
            ServerError: It refused them, or the product does not decide with them, or
                activated another release meanwhile.
        """
        record = self._with(self._roles.written(self.configs, candidate))
        with self._turn():
            if candidate.form == "fused":
                self._load_fused(record)
            else:
                self._load_steps(record, anyway=frozenset())
        self._require_decisions(self._name(candidate.form))
        self._settle(candidate.form)

    def model(self, candidate: Candidate) -> str:
        """Return the name under which the server serves the product with settings."""
        return control.served_name(self._server, self._name(candidate.form))

    def holds(self, candidate: Candidate) -> bool:
        """Return whether the server still runs with settings."""
        if candidate.form == "fused":
            wanted = self._with(self._roles.written(self.configs, candidate))
            return not self._fused_differs(wanted)
        configs = {**self._running(), self._product: self.configs[self._product]}
        loaded = control.is_ready(self._server, self._name(candidate.form))
        return loaded and self._roles.read(configs) == candidate

    def _name(self, form: Form) -> str:
        return self._product if form == self.form else self._trial

    def _with(self, configs: Configs) -> ServingRecord:
        """Return the record with other configurations."""
        return msgspec.structs.replace(
            self._record,
            configs={step: to_json(configs[step]) for step in self._record.configs},
            ensemble=to_json(configs[self._product]),
        )

    def _slots(self) -> dict[str, list[int]]:
        """List the slots of each step that the ensemble needs."""
        if self.form == "ensemble":
            return loaded_slots(self._record)
        return loaded_slots(msgspec.structs.replace(self._record, previous=None))

    def _load_steps(self, record: ServingRecord, *, anyway: Collection[str]) -> None:
        """Load the steps whose running configuration differs, and those in `anyway`."""
        served = self.form == "ensemble"
        self._other_form |= not served
        for step, slots in self._slots().items():
            generation = 0
            if served or control.ready_versions(self._server, step):
                running = control.model_config(self._server, step)
                wanted = json_format.Parse(record.configs[step], ModelConfig())
                if not _differs(_parsed(running), wanted) and step not in anyway:
                    continue
                # Without a new generation Triton only adds or removes instances, and a
                # removed one looks dead while the old count is still reported.
                generation = generation_of(running) + 1
            if served:
                self._tried.add(step)
            self._loading.step(record, step, slots, generation=generation)
        if not served:
            (self._server.own_repository / self._trial / str(VERSION)).mkdir(
                parents=True, exist_ok=True
            )
            self._loading.ensemble(record, name=self._trial, loaded=record.active)

    def _load_fused(self, record: ServingRecord) -> None:
        """Load the fused model, if the running one differs."""
        name = self._name("fused")
        loaded = control.ready_versions(self._server, name) == [VERSION]
        if loaded and not self._fused_differs(record):
            return
        if self.form == "fused":
            self._tried.add(name)
        else:
            self._other_form = True
        self._fused.ensemble(record, name=name, loaded=record.active)

    def _fused_differs(self, record: ServingRecord) -> bool:
        """Return whether the fused model runs with other settings than a record's."""
        name = self._name("fused")
        running = _parsed(control.model_config(self._server, name))
        wanted = fused_config(record, record.active, name=name)
        return _fused_words(running) != _fused_words(wanted)

    def _differing(self) -> list[str]:
        """List the models of the served form that run with other settings."""
        if self.form == "fused":
            return [self._product] if self._fused_differs(self._record) else []
        return [
            step
            for step, config in self._running().items()
            if _differs(config, self.configs[step])
        ]

    def _loaded_of_other_form(self) -> list[str]:
        """List the models of the other form that a killed process left loaded."""
        steps = [*self._record.configs] if self.form == "fused" else []
        # The public name of the trial is also that of an ensemble, in another version.
        versions = control.ready_versions(self._server, self._trial)
        loaded = [one for one in steps if control.ready_versions(self._server, one)]
        return [self._trial] * (VERSION in versions) + loaded

    def _drop_other_form(self) -> None:
        if not self._other_form:
            return
        with lock_folder(self._server.own_repository / self._product):
            self._loading.drop(self._trial)
            if self.form == "fused":
                for step in self._record.configs:
                    self._loading.drop(step)
        self._other_form = False

    def _running(self) -> dict[str, ModelConfig]:
        return {
            step: _parsed(control.model_config(self._server, step))
            for step in self._record.configs
        }

    def _require_decisions(self, name: str) -> None:
        until_s = time.monotonic() + _DECIDES_S
        while True:
            try:
                ask_once(self._server, name, timeout_s=1.0)
                return
            except ServerError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)

    def _settle(self, form: Form) -> None:
        """Wait until replaced instances have ended: they use processor time, too."""
        if form == "fused":
            models, most = {self._name(form)}, 1
        else:
            slots = self._slots()
            models = {*slots}
            most = sum(
                len(slots[step]) * max(1, group.count)
                for step, config in self._running().items()
                for group in config.instance_group
            )
        until_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < until_s:
            stubs = find_stubs(self._server.pid)
            if sum(stub.step.model in models for stub in stubs) <= most:
                return
            time.sleep(0.05)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Lock the product, and check that it still serves the same release."""
        with lock_folder(self._server.own_repository / self._record.product):
            now = read_record(self._path)
            if now != self._record:
                self._tried.clear()  # the activation loaded its own configuration
                problem = f"went to release {now.active.release} meanwhile"
                raise ServerError(
                    self._record.product, f"{problem}; run `tollgate tune` again"
                )
            yield

    def _put_back(self) -> None:
        """Unload the other form; load the recorded configurations, with retries."""
        self._drop_other_form()
        for left in reversed(range(_TRIES)):
            if not self._tried:
                return
            try:
                with self._turn():
                    # If a load was cut off, the tried settings may still take effect.
                    if self.form == "fused":
                        self._fused.renew(self._record, self._product)
                    else:
                        self._load_steps(self._record, anyway={*self._tried})
                self._require_decisions(self._product)
                if not self.holds(self.base):
                    raise ServerError(self._record.product, "was changed meanwhile")
                self._tried.clear()
            except ServerError as error:
                if not self._tried:
                    return
                if not left:
                    models = ", ".join(sorted(self._tried))
                    problem = f"{models} may run with settings that were only tried"
                    raise ServerError(
                        self._record.product,
                        f"{problem}: {error}; restart the server, or run "
                        "`tollgate tune --restore`",
                    ) from error
                time.sleep(_AGAIN_S)

    def __exit__(self, *_: object) -> None:
        with self._stack, _undisturbed():
            self._put_back()


def _parsed(running: dict[str, object]) -> ModelConfig:
    config: ModelConfig = json_format.ParseDict(running, ModelConfig())
    return config


def _differs(running: ModelConfig, wanted: ModelConfig) -> bool:
    """Compare the fields that settings consist of; Triton fills in others."""
    return _words(running) != _words(wanted)


def _words(config: ModelConfig) -> tuple[object, ...]:
    batching = config.dynamic_batching
    # Triton reports max_batch_size where none is preferred.
    preferred = {*batching.preferred_batch_size} - {config.max_batch_size}
    return (
        batching.max_queue_delay_microseconds,
        tuple(sorted(preferred)),
        tuple(max(1, group.count) for group in config.instance_group),
        tuple(
            sorted(
                (key, one.string_value)
                for key, one in config.parameters.items()
                if key in _PARAMETERS
            )
        ),
    )


def _fused_words(fused: ModelConfig) -> tuple[object, ...]:
    return (
        fused.dynamic_batching.max_queue_delay_microseconds,
        fused.parameters[FUSED_PARAMETER].string_value,
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in the block, so that it completes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

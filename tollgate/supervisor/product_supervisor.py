"""Supervise one product in its own thread, in parallel with the server's others."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from tollgate.errors import ServerError
from tollgate.server.serving.release_serving import Serving
from tollgate.server.triton import control
from tollgate.server.triton.launcher import TritonServer
from tollgate.supervisor.health_probe import HealthProbe
from tollgate.supervisor.reconciler import Reconciler
from tollgate.supervisor.recovery import Recovery
from tollgate.supervisor.stubs import Step, Stub, is_configured
from tollgate.worker import Worker, backoff_s

# Hold the state of one supervised product: its loaded release and its health.

_RESTART_S, _MOST_RESTART_S = 5.0, 60.0


class SupervisedProduct:
    """
    One of the products of a server.

    Args:
        serving: Record of the product's loaded release.
        health_probe: Its health probe; not yet started.
        reconciler: Its reconciliation with the repository; not yet started.
    """

    def __init__(
        self, serving: Serving, *, health_probe: HealthProbe, reconciler: Reconciler
    ) -> None:
        self.name = health_probe.product
        self.serving = serving
        self.health_probe = health_probe
        self.reconciler = reconciler
        self._was_loaded = self.loaded
        self._restarts = 0  # consecutive restarts without success
        self._next_restart_s = 0.0

    @property
    def loaded(self) -> bool:
        """Return whether a release of the product is loaded."""
        return self.serving.active is not None

    @property
    def failures(self) -> int:
        """Number of failed probes in a row; 0 while no release is loaded."""
        if self.loaded and not self._was_loaded:
            self._was_loaded = True
            self.health_probe.reset_failures()
        return self.health_probe.failures if self.loaded else 0

    @property
    def ready(self) -> bool:
        """Return whether the product decides."""
        return self.loaded and self.health_probe.ready

    @property
    def release(self) -> str:
        """Release that answered last."""
        return self.health_probe.release

    @property
    def problem(self) -> str:
        """Reason why the product is not ready; empty if it is."""
        if self.loaded:
            return self.health_probe.problem
        return f"is not loaded: {self.reconciler.problem}"

    def start(self) -> None:
        """Start the health probe and the reconciliation."""
        self.health_probe.start()
        self.reconciler.start()

    def stop(self) -> None:
        """Stop both, after a switch in progress has ended."""
        self.reconciler.stop()
        self.health_probe.stop()

    def others_get_answers(self) -> bool:
        """Return whether other callers get answers, even if the probe does not."""
        return self.loaded and self.health_probe.others_get_answers()

    def may_restart_steps(self) -> bool:
        """
        Return whether its steps may be restarted again, and count the restart.

        Each restart costs the other products computing time: the pause doubles after
        each restart that did not help, up to a minute.
        """
        now_s = time.monotonic()
        if now_s < self._next_restart_s:
            return False
        lived_s = now_s - self._next_restart_s
        self._restarts = 0 if lived_s > _MOST_RESTART_S else self._restarts + 1
        pause_s = backoff_s(
            self._restarts + 1, first_s=_RESTART_S, most_s=_MOST_RESTART_S
        )
        self._next_restart_s = now_s + pause_s
        return True


log = logging.getLogger(__name__)

# Consecutive failures of a product after which to restart: a server that does not
# answer at all, then the product's steps, then a server that does answer.
_SILENT_AFTER, _STEPS_AFTER, _SERVER_AFTER = 2, 3, 6
_STOPPED_S = 0.5

Restart = Callable[[str], None]


class ProductSupervisor:
    """
    Supervise one product in its own thread, so that a hanging action delays no other.
    """

    def __init__(
        self,
        product: SupervisedProduct,
        *,
        others: Sequence[SupervisedProduct],
        triton: TritonServer,
        recovery: Recovery,
        restart: Restart,
    ) -> None:
        self.product = product
        self._others = others
        self._triton = triton
        self._recovery = recovery
        self._restart = restart
        self._known: dict[Step, Stub] = {}
        self._stopped_s: dict[int, float] = {}
        self._action: Callable[[], None] | None = None
        self._failure: ServerError | None = None
        self._worker = Worker(f"keep-{product.name}", self._run_action, pause_s=None)

    def start_action(self, action: Callable[[], None]) -> bool:
        """
        Start an action for the product and return True, unless one is in progress.

        Raises:
            ServerError: The last action gave up.
        """
        if not self._is_free():
            return False
        self._action = action
        self._worker.start()
        self._worker.wake()
        return True

    def _run_action(self) -> None:
        """Run the pending action; the worker handles errors other than ServerError."""
        if self._action is None:
            return
        try:
            self._action()
        except ServerError as error:
            self._failure = error
        finally:
            self._action = None

    def _is_free(self) -> bool:
        """Return whether no action is in progress; raise the last action's error."""
        if self._failure is not None:
            raise self._failure
        return self._action is None

    def lacks_step(self, stubs: Sequence[Stub]) -> bool:
        """Return whether a step that was seen before is missing from the list."""
        return bool(self._known.keys() - {stub.step for stub in stubs})

    def needs_check(self, stubs: Sequence[Stub]) -> bool:
        """
        Return whether a check would find anything that the last one did not.

        Raises:
            ServerError: The last action gave up.
        """
        if not self._is_free():
            return False
        try:
            return self._steps_changed(stubs) or self.product.failures >= _SILENT_AFTER
        except Exception:  # noqa: BLE001 - the check meets it, and its worker counts it
            return True

    def _steps_changed(self, stubs: Sequence[Stub]) -> bool:
        steps = self.product.serving.steps
        own = {stub.step: stub for stub in stubs if stub.step.model in steps}
        known = self._known
        return (
            own.keys() != known.keys()
            or any(own[step].pid != known[step].pid for step in own)
            or any(stub.stopped for stub in own.values())
        )

    def stop(self) -> None:
        """Start no more actions; an action in progress ends with its server."""
        self._worker.stop(0)

    def check(self, stubs: Sequence[Stub]) -> None:
        """
        Check once, and repair the faults that it finds.

        Raises:
            ServerError: A part keeps failing after repairs.
        """
        steps = self.product.serving.steps
        own = [stub for stub in stubs if stub.step.model in steps]
        self._restart_dead_steps(own)
        self._kill_stopped(own)
        if self.product.failures >= _SILENT_AFTER:
            self._restart_undecided(own)

    def _restart_dead_steps(self, stubs: Sequence[Stub]) -> None:
        """Reload the models that miss a stub."""
        living = {stub.step: stub for stub in stubs}
        gone = [step for step in self._known if step not in living]
        self._known = living | {step: self._known[step] for step in gone}
        dead: set[str] = set()
        for step in gone:
            configured = self._is_configured(step)
            if configured is False:
                del self._known[step]  # the instance was removed on purpose
            elif configured:
                dead.add(step.model)
        for model in sorted(dead):
            self._restart_step(model, "a step died")

    def _is_configured(self, step: Step) -> bool | None:
        """Return whether an instance is configured to run; None if unknown."""
        try:
            versions = control.ready_versions(self._triton, step.model, timeout_s=1.0)
            if step.version not in versions:
                return False
            return is_configured(step, control.model_config(self._triton, step.model))
        except ServerError:
            return None

    def _restart_step(self, model: str, what: str) -> None:
        action = partial(self.product.serving.renew, model)
        repaired = self._recovery.repair(model, what, action, product=self.product.name)
        if not repaired and not self._others_decide():
            self._known = {}
            self._restart(f"{model} could not be restarted")

    def _others_decide(self) -> bool:
        """
        Return whether another product decides, for the probe or for its callers.

        A product that was repaired a moment ago counts: its next probe shows whether it
        decides.
        """
        return any(
            other.loaded and (not other.failures or other.others_get_answers())
            for other in self._others
        )

    def _kill_stopped(self, stubs: Sequence[Stub]) -> None:
        """Kill processes that a signal stopped; the next check finds them dead."""
        now_s = time.monotonic()
        self._stopped_s = {
            stub.pid: self._stopped_s.get(stub.pid, now_s)
            for stub in stubs
            if stub.stopped
        }
        late_s = now_s - _STOPPED_S
        self._kill(
            [stub for stub in stubs if self._stopped_s.get(stub.pid, now_s) <= late_s]
        )

    def _restart_undecided(self, stubs: Sequence[Stub]) -> None:
        """Restart the steps of a product that does not decide, then the server."""
        product, probe = self.product, self.product.health_probe
        if self._others_decide():
            overdue = probe.failures >= _STEPS_AFTER
            if overdue and not self._overloaded() and product.may_restart_steps():
                self._restart_steps(stubs)
        elif not control.is_live(self._triton):
            self._restart("does not answer")
        elif probe.failures < _STEPS_AFTER or self._overloaded():
            return
        elif probe.failures == _STEPS_AFTER:
            self._restart_steps(stubs)
            probe.failures = _STEPS_AFTER + 1
        elif probe.failures >= _SERVER_AFTER:
            self._restart(f"{product.name} does not decide: {probe.problem}")

    def _restart_steps(self, stubs: Sequence[Stub]) -> None:
        """Restart all steps of the product, also dead ones that no check found."""
        name, problem = self.product.name, self.product.health_probe.problem
        log.warning("%s: its steps are restarted: %s", name, problem)
        self._kill(stubs)
        for model in self.product.serving.steps:
            self._restart_step(model, f"{name} does not decide")

    def _overloaded(self) -> bool:
        if not self.product.others_get_answers():
            return False
        log.warning("%s answers other callers, but no probe in time", self.product.name)
        self.product.health_probe.note_overload()
        return True

    def _kill(self, stubs: Sequence[Stub]) -> None:
        for stub in stubs:
            log.warning("%s: process %d is killed", stub.step.model, stub.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(stub.pid, signal.SIGKILL)

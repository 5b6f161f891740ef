"""
Own the serving processes of a machine and restart those that fail.

Several times a second the supervisor checks that tritonserver, Redis and every Python
step live; once a second each product must decide a dry run. The supervisor restarts a
process that died, and kills a process that hangs before it restarts it. It repairs the
fault of one product in parallel with the other products and without touching them: it
does not restart the server for one product while another one decides. A fault that
keeps coming back ends the supervisor, with the reason: the operator or orchestrator
that started it knows better what to try next.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tollgate.errors import ServerError
from tollgate.server.serving.embedded import Embedded
from tollgate.server.serving.initial_load import reload_products
from tollgate.supervisor.fault_log import Fault
from tollgate.supervisor.product_supervisor import ProductSupervisor, SupervisedProduct
from tollgate.supervisor.recovery import Flapping, Recovery
from tollgate.supervisor.recycling import Recycling
from tollgate.supervisor.stubs import Stub, StubWatch
from tollgate.worker import Worker

# Hold a supervisor's processes, and reload all products after a Triton restart.


class ServingProcesses:
    """
    A running server with its products.

    Args:
        announce: Publishes the server's address to other processes, after each start.
    """

    def __init__(
        self,
        embedded: Embedded,
        *,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        self.triton = embedded.triton
        self.redis = embedded.redis
        self._serving = embedded.serving
        self._announce = announce

    def restart_triton(self) -> None:
        """
        Restart the server with what it served, without reading the repository.

        Raises:
            ServerError: It did not start, or no product came back.
        """
        self.triton.restart()
        self._announce()
        reload_products(self._serving)


log = logging.getLogger(__name__)

TICK_S = 0.1
_MOST_TICK_S = 1.0  # pause between two checks while they fail
_REDIS_AFTER = 3  # consecutive probes that Redis did not answer within a second
_REDIS_EVERY_S = 1.0
_RECYCLING_EVERY_S = 1.0


class Supervisor:
    """
    Watch one server until it is stopped.

    Args:
        served: The processes that it owns.
        products: The products that it serves; not yet started.
        recycling: Limits at which a working step is restarted.
        fault: Called with each fault, after its repair succeeded or failed.

    Attributes:
        draining: True if it is about to stop: not ready, whatever the health probes
            say.
        ticked_s: Time of its last check, on the monotonic clock.
        recycled: Number of steps restarted although they worked.
        stubs: The steps' processes, as of the last check.
    """

    def __init__(
        self,
        served: ServingProcesses,
        *,
        products: Sequence[SupervisedProduct],
        recycling: Recycling,
        fault: Callable[[Fault], None],
    ) -> None:
        self.draining = False
        self.products = tuple(products)
        self.ticked_s = time.monotonic()
        self.recycled = 0
        self.stubs: list[Stub] = []
        self._stub_watch = StubWatch()
        self._served = served
        self._recycling = recycling
        self._recovery = Recovery(
            [one.health_probe for one in self.products],
            fault=fault,
            flapping=Flapping(),
        )
        self._product_supervisors = [
            ProductSupervisor(
                one,
                others=[other for other in self.products if other is not one],
                triton=served.triton,
                recovery=self._recovery,
                restart=self._restart_for,
            )
            for one in self.products
        ]
        self._restarting = threading.Lock()
        self._redis_failures = 0
        self._redis_checked_s = 0.0
        self._recycled_s = time.monotonic()
        self._recycling_checked_s = 0.0

    @property
    def ready(self) -> bool:
        """Return whether every product decides and no stop is pending."""
        return not self.draining and all(one.ready for one in self.products)

    def processes(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield process id, name, product and instance of each serving process."""
        owners = {step: one.name for one in self.products for step in one.serving.steps}
        yield os.getpid(), "supervisor", "", ""
        yield self._served.triton.pid, "tritonserver", "", ""
        if self._served.redis is not None:
            yield self._served.redis.pid, "redis-server", "", ""
        for stub in self.stubs:
            model = stub.step.model
            yield stub.pid, model, owners.get(model, ""), stub.step.instance

    def run(self, stopped: threading.Event) -> None:
        """
        Watch until the event is set.

        Raises:
            ServerError: A part keeps failing after repairs.
        """
        for product in self.products:
            product.start()
        try:
            Worker(
                "supervisor",
                self.tick,
                pause_s=TICK_S,
                most_pause_s=_MOST_TICK_S,
                ends=(ServerError,),
                stopped=stopped,
            ).run()
        finally:
            self.draining = True
            for one in self._product_supervisors:
                one.stop()
            for product in self.products:
                product.stop()
            self._stub_watch.close()

    def tick(self) -> None:
        """Check once; actions of products run in parallel."""
        self.ticked_s = time.monotonic()
        self._watch_redis()
        pid = self._served.triton.pid
        if not self._served.triton.alive():
            self._restart_triton("ended", pid=pid)
            return
        if self._restarting.locked():
            return  # another thread restarts it for a product
        stubs = self._stub_watch.poll(pid)
        if any(one.lacks_step(stubs) for one in self._product_supervisors):
            stubs = self._stub_watch.scan(pid)
        self.stubs = stubs
        self._recycle(stubs)
        for one in self._product_supervisors:
            if one.needs_check(stubs):
                one.start_action(partial(one.check, stubs))

    def _watch_redis(self) -> None:
        redis = self._served.redis
        if redis is None:
            return
        if not redis.alive():
            self._recovery.repair("redis-server", "ended", redis.restart)
            return
        if self.ticked_s - self._redis_checked_s < _REDIS_EVERY_S:
            return
        self._redis_checked_s = self.ticked_s
        self._redis_failures = 0 if redis.answers() else self._redis_failures + 1
        if self._redis_failures >= _REDIS_AFTER:
            self._redis_failures = 0
            self._recovery.repair("redis-server", "does not answer", redis.restart)

    def _restart_for(self, what: str) -> None:
        """Restart the server because of one product."""
        self._restart_triton(what, pid=self._served.triton.pid)

    def _restart_triton(self, what: str, *, pid: int) -> None:
        """Restart the server, unless it was restarted meanwhile."""
        triton = self._served.triton
        with self._restarting:
            if self.draining or (triton.alive() and triton.pid != pid):
                return
            self._recovery.repair("tritonserver", what, self._served.restart_triton)

    def _recycle(self, stubs: Sequence[Stub]) -> None:
        checked_s = self.ticked_s - self._recycling_checked_s
        recycled_s = self.ticked_s - self._recycled_s
        if checked_s < _RECYCLING_EVERY_S or recycled_s < self._recycling.apart_s:
            return
        self._recycling_checked_s = self.ticked_s
        ready = {
            step: one
            for one in self._product_supervisors
            for step in one.product.serving.steps
            if one.product.ready
        }
        due = self._recycling.due(stub for stub in stubs if stub.step.model in ready)
        if due is None:
            return
        stub, reason = due
        model = stub.step.model
        owner = ready[model]
        if owner.start_action(
            partial(self._restart_step, owner.product, model, reason)
        ):
            self._recycled_s = time.monotonic()

    def _restart_step(
        self, product: SupervisedProduct, model: str, reason: str
    ) -> None:
        log.info("%s %s: it is restarted", model, reason)
        try:
            product.serving.renew(model)
        except ServerError as error:
            log.warning("%s could not be restarted: %s", model, error)
        else:
            self.recycled += 1

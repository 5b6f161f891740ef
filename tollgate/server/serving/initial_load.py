"""Load the products of a server when it starts, in parallel and independently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

from tollgate.errors import (
    PolicyError,
    RepositoryError,
    SpecError,
    TollgateError,
)
from tollgate.repository.releases.serving_plan import ServingPlan, plan_serving
from tollgate.repository.slo import Form, read_slo
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.copy_slots import Slots
from tollgate.server.serving.loaded import record_path
from tollgate.server.serving.release_serving import Serving
from tollgate.server.triton.launcher import TritonServer

log = logging.getLogger(__name__)


class ProductLoader:
    """
    Load a product at the start: its release, or the one that was served before.

    Args:
        form: Form in which it is served; empty for that of its slo.yaml.
    """

    def __init__(
        self,
        snapshot: RepositorySnapshot,
        product: str,
        *,
        state: Path,
        form: Form | Literal[""] = "",
    ) -> None:
        self.product = product
        self._record = record_path(state, product)
        self._plan: ServingPlan | None = None
        self._error: TollgateError | None = None
        self._form: Form = form or "ensemble"
        try:
            self._form = form or read_slo(snapshot.folder, product=product).form
            self._plan = plan_serving(
                snapshot, snapshot.release(product), form=self._form
            )
        except (RepositoryError, SpecError, PolicyError) as error:
            self._error = error

    def require_plan(self) -> None:
        """
        Fail unless the product has a release that can be served.

        Raises:
            RepositoryError: Its files do not fit together.
            SpecError: The features.yaml cannot be used.
            PolicyError: The policy.yaml cannot be used.
        """
        if self._error is not None:
            raise self._error

    def serving(self, triton: TritonServer, slots: Slots) -> Serving:
        """Make the object that serves the product; nothing is loaded yet."""
        return Serving(triton, slots, record=self._record, form=self._form)

    def begin(self, serving: Serving) -> None:
        """
        Load the release; if it cannot be planned, load what was served before.

        Raises:
            TollgateError: Neither can be loaded.
        """
        if self._plan is not None:
            answered = serving.begin(self._plan)
        else:
            if not self._record.exists():
                self.require_plan()
            text = "%s: %s; what was served before is served"
            log.error(text, self.product, self._error)
            answered = serving.recall()
        log.info("%s: release %s is ready", self.product, answered)


def load_products(
    loaders: Sequence[ProductLoader],
    serving: Mapping[str, Serving],
    *,
    tolerant: bool,
) -> dict[str, str]:
    """
    Load all products in parallel; return why a product is not served, by product.

    Args:
        tolerant: True if one product that can be served is enough.

    Raises:
        TollgateError: The error of the first product that cannot be served, unless
            another can and that is enough.
    """
    failed = _in_parallel(
        {one.product: partial(one.begin, serving[one.product]) for one in loaders}
    )
    if failed and not (tolerant and len(failed) < len(loaders)):
        raise next(iter(failed.values()))
    for product, error in failed.items():
        log.error("%s is not served: %s", product, error)
    return {product: str(error) for product, error in failed.items()}


def reload_products(serving: Mapping[str, Serving]) -> None:
    """
    Load what each product had, after their server was restarted.

    A product that does not come back is logged; it is reported as not ready, and
    repaired later.

    Raises:
        ServerError: None of them came back.
    """
    started = {product: one for product, one in serving.items() if one.active}
    failed = _in_parallel({product: one.again for product, one in started.items()})
    for product, error in failed.items():
        log.error("%s did not come back: %s", product, error)
    if failed and len(failed) == len(started):
        raise next(iter(failed.values()))


def _in_parallel(
    actions: Mapping[str, Callable[[], object]],
) -> dict[str, TollgateError]:
    """Run one action per product in parallel; return the errors, by product."""
    failed: dict[str, TollgateError] = {}
    with ThreadPoolExecutor(max(1, len(actions))) as pool:
        started = {product: pool.submit(action) for product, action in actions.items()}
        for product, future in started.items():
            try:
                future.result()
            except TollgateError as error:
                failed[product] = error
    return failed

"""What a supervisor owns, and how its server is brought back to the release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tollgate.repository.product import read_product
from tollgate.repository.release import plan_load
from tollgate.server.embedded import Embedded, bring_up


class Served:
    """
    A running server with its products.

    Args:
        embedded: The processes.
        repository: The model repository.
        product: The ensemble in it.
        model_config_name: Named configuration to take where a model has it.
        announce: Tells other processes where the server is, after each start.
    """

    def __init__(
        self,
        embedded: Embedded,
        *,
        repository: Path,
        product: str,
        model_config_name: str = "",
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        self.triton = embedded.triton
        self.redis = embedded.redis
        self.store_url = embedded.store_url
        self.repository = repository
        self.product = product
        self.model_config_name = model_config_name
        self._announce = announce

    def steps(self, product: str) -> list[str]:
        """Name the models that a product's ensemble is made of, as data flows."""
        return list(read_product(self.repository, product).steps)

    def restart_triton(self) -> None:
        """
        Start the server again, with what the release says now.

        Raises:
            RepositoryError: The release does not fit together.
            ServerError: It did not start, load or answer.
        """
        loads = plan_load(
            self.repository, product=self.product, config_name=self.model_config_name
        )
        self.triton.restart()
        self._announce()
        bring_up(self.triton, loads, product=self.product)

"""Hold a supervisor's processes, and reload all products after a Triton restart."""

from __future__ import annotations

from collections.abc import Callable

from tollgate.server.beginning import reload_products
from tollgate.server.embedded import Embedded


class ServingProcesses:
    """
    A running server with its products.

    Args:
        embedded: The processes.
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

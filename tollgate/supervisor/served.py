"""What a supervisor owns, and how its server is brought back to what it served."""

from __future__ import annotations

from collections.abc import Callable

from tollgate.server.embedded import Embedded


class Served:
    """
    A running server with its product.

    Args:
        embedded: The processes.
        announce: Tells other processes where the server is, after each start.
    """

    def __init__(
        self,
        embedded: Embedded,
        *,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        self.triton = embedded.triton
        self.redis = embedded.redis
        self.store_url = embedded.store_url
        self.serving = embedded.serving
        self._announce = announce

    def steps(self) -> list[str]:
        """Name the models that the product is made of, as data flows."""
        active = self.serving.active
        return list(active.slots) if active else []

    def restart_triton(self) -> None:
        """
        Start the server again, with what it served; the repository is not asked.

        Raises:
            ServerError: It did not start, load or answer.
        """
        self.triton.restart()
        self._announce()
        self.serving.again()

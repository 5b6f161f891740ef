"""Which journals are monitored, those that begin later among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tollgate.audit.links import link_paths
from tollgate.errors import InputError
from tollgate.monitor.looking import Options, ProductMonitor


class Journals:
    """
    The monitors of some journals.

    Args:
        named: Their folders; empty for all there are.
        home: Folder in which all there are lie, one for each product.
        repository: As of ProductMonitor.
        options: Likewise.

    Attributes:
        monitors: Of the journals that have begun, in the order in which they were
            found.
    """

    def __init__(
        self,
        named: Sequence[Path],
        *,
        home: Path,
        repository: Path | None,
        options: Options,
    ) -> None:
        self.monitors: list[ProductMonitor] = []
        self._named = tuple(dict.fromkeys(named))
        self._home = home
        self._repository = repository
        self._options = options

    def open(self) -> None:
        """
        Begin to monitor the journals that have begun since.

        Raises:
            InputError: One that is named has not, or there is none; the others are
                opened.
        """
        known = {one.folder for one in self.monitors}
        missing = []
        for folder in self._named or self._found():
            if folder in known:
                continue
            if link_paths(folder):
                self.monitors.append(
                    ProductMonitor(
                        folder, repository=self._repository, options=self._options
                    )
                )
            else:
                missing.append(folder)
        if missing:
            raise InputError(
                missing[0], "holds no journal; `tollgate journal run` makes one"
            )
        if not self.monitors:
            problem = "holds no journal; `tollgate journal run` makes one"
            raise InputError(self._home, problem)

    def _found(self) -> list[Path]:
        try:
            there = sorted(self._home.iterdir())
        except OSError:
            return []
        return [one for one in there if one.is_dir() and link_paths(one)]

"""Find the journals to monitor, including those that start later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tollgate.audit.chain.links import link_paths, no_journal
from tollgate.monitor.journal_monitor import MonitorOptions, ProductMonitor


class Journals:
    """
    Monitors of several journals.

    Args:
        named: Folders of the journals; empty for all in `home`.
        home: Folder with one journal per product.
        repository: See ProductMonitor.
        options: See ProductMonitor.

    Attributes:
        monitors: Monitors of the journals that exist, in the order in which they were
            found.
    """

    def __init__(
        self,
        named: Sequence[Path],
        *,
        home: Path,
        repository: Path | None,
        options: MonitorOptions,
    ) -> None:
        self.monitors: list[ProductMonitor] = []
        self._named = tuple(dict.fromkeys(named))
        self._home = home
        self._repository = repository
        self._options = options

    def open(self) -> None:
        """
        Start to monitor the journals that were created since the last call.

        Raises:
            InputError: A named journal does not exist yet, or there is none; the others
                are opened.
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
            raise no_journal(missing[0])
        if not self.monitors:
            raise no_journal(self._home)

    def _found(self) -> list[Path]:
        try:
            there = sorted(self._home.iterdir())
        except OSError:
            return []
        return [one for one in there if one.is_dir() and link_paths(one)]

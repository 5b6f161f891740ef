"""Open a journal in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.audit.random_records import REPOSITORY
from tollgate.audit.chain.anchor import AnchorFile, AnchorMark, read_anchor
from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer


class Journal(msgspec.Struct):
    """An opened journal, with everything that belongs to it."""

    chain: Chain
    subjects: Subjects
    releases: ReleaseArchive
    sealer: Sealer
    home: Path

    @property
    def folder(self) -> Path:
        """Return the folder of its links."""
        return self.chain.folder

    def marks(self) -> list[AnchorMark]:
        """Read its anchor."""
        return read_anchor(self.home / "journal.anchor")


@pytest.fixture
def open_journal(tmp_path: Path) -> Callable[..., Journal]:
    """Open the journal of this test, any number of times."""

    def open_(
        *,
        repository: Path | None = REPOSITORY,
        consent: str | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> Journal:
        chain = Chain(
            tmp_path / "journal",
            product="fraud",
            anchor=AnchorFile(tmp_path / "journal.anchor"),
            on_step=on_step,
        )
        subjects = Subjects(tmp_path / "journal.keys")
        releases = ReleaseArchive(chain, repository=repository, consent=consent)
        sealer = Sealer(chain, subjects=subjects, releases=releases)
        return Journal(chain, subjects, releases, sealer, tmp_path)

    return open_

"""Sealed journals of decisions with and without drift."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from tests.support.audit.random_records import REPOSITORY, made
from tollgate.audit.chain.anchor import AnchorFile
from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer
from tollgate.journal.decision_record import Records

ARTIFACT = REPOSITORY / "fraud_model/1/artifact.json"
TRAINING = json.loads(ARTIFACT.read_text())["training"]
FEATURES = tuple(TRAINING["features"])
DAY_US = 86_400_000_000
# Metrics of the monitor that only products that rank have.
LIST_METRICS = {
    "tollgate_monitor_list_share",
    "tollgate_monitor_explored_share",
    "tollgate_monitor_coverage",
    "tollgate_monitor_shown_share",
}
LOOKED_US = 1_790_000_000_000_000  # long after everything


def vectors(rows: int, *, seed: int = 0) -> np.ndarray:
    """Draw vectors by the quantiles in artifact.json; float32 [N, 15]."""
    chance = np.random.default_rng([3, seed])
    shares = TRAINING["quantiles"]
    columns = [
        np.interp(chance.random(rows), shares, one["quantiles"])
        for one in TRAINING["features"].values()
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def decisions(
    rows: int,
    *,
    first: int = 0,
    features: np.ndarray | None = None,
    release: str = "fraud-1",
    writer: str = "0123456789abcdef",
    customers: int = 0,
    degraded: np.ndarray | None = None,
    **more: object,
) -> Records:
    """
    Make decisions as training was.

    Args:
        rows: How many.
        first: Number of the first.
        features: Their vectors; drawn by training when None.
        release: Who decided.
        writer: For which process.
        customers: How many there are; one each when 0.
        degraded: Their bits.
        more: Of `made`.
    """
    base = made(rows, first=first, release=release, writer=writer, **more)  # type: ignore[arg-type]
    chance = np.random.default_rng([4, first])
    score = TRAINING["score"]["quantiles"]
    fraud = np.interp(chance.random(rows), TRAINING["quantiles"], score)
    who = first + np.arange(rows)
    if customers:
        who = chance.integers(0, customers, rows)
    return msgspec.structs.replace(
        base,
        features=vectors(rows, seed=first) if features is None else features,
        probabilities=np.stack([1 - fraud, fraud], axis=1).astype(np.float32),
        entity_id=[[f"card-{one}".encode() for one in who], base.entity_id[1]],
        degraded=base.degraded if degraded is None else degraded,
    )


def shifted(rows: int, *, first: int, name: str = "amount") -> Records:
    """Return decisions with one feature shifted far."""
    features = vectors(rows, seed=first)
    features[:, FEATURES.index(name)] += 150
    return decisions(rows, first=first, features=features)


class Sealed:
    """
    A journal in STATE/journal/PRODUCT.

    Args:
        state: The state folder.
        consent: Field with the consent to store a row.
        repository: Where releases are; None for nowhere.
        product: Whose journal.
    """

    def __init__(
        self,
        state: Path,
        *,
        consent: str | None = None,
        repository: Path | None = REPOSITORY,
        product: str = "fraud",
    ) -> None:
        home = state / "journal"
        home.mkdir(parents=True, exist_ok=True)
        self.folder = home / product
        self.keys = home / f"{product}.keys"
        anchor = AnchorFile(home / f"{product}.anchor")
        self.chain = Chain(self.folder, product=product, anchor=anchor)
        self.subjects = Subjects(self.keys)
        releases = ReleaseArchive(self.chain, repository=repository, consent=consent)
        self._sealer = Sealer(self.chain, subjects=self.subjects, releases=releases)

    def seal(self, *records: Records) -> None:
        """Seal records, one segment for each."""
        for one in records:
            self._sealer.seal([one])


def labels_of(
    records: Records, label: np.ndarray, path: Path, *, took_us: np.ndarray
) -> Path:
    """Write labels of records that became known some time after their purchases."""
    ids = [[one.decode() for one in column] for column in records.entity_id]
    pl.DataFrame(
        {
            "transaction_id": [one.decode() for one in records.transaction_id],
            "customer_id": ids[0],
            "terminal_id": ids[1],
            "event_time": records.event_time_us,
            "label": label,
            "label_time": records.event_time_us + took_us,
        }
    ).write_parquet(path)
    return path

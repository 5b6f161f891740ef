"""
Know which items of a catalogue are out of stock.

The store has their ids in a set, as it has those of other lists. A background loop
reads it four times a second, with its own connection. While the store does not answer,
the last view stands.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from tollgate.errors import StoreError
from tollgate.ranking.catalogue import Catalogue
from tollgate.schema import hash_words
from tollgate.store.id_lists import list_key
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import NoStore, RedisStore, describe_error
from tollgate.store.store_opening import StoreSettings
from tollgate.worker import Worker

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
_DEADLINE_S = 0.1  # of one read; no answer waits for it

Bool = npt.NDArray[np.bool_]


class StockView:
    """
    The items in stock, as far as this process knows.

    Args:
        store: Has the list; closed with this.
        catalogue: The items.
        product: The product.
        name: Name of the list; empty if all items are in stock.

    Attributes:
        unknown: Ids in the list that are not in the catalogue, at the last read.
    """

    def __init__(
        self, store: RedisStore, catalogue: Catalogue, *, product: str, name: str
    ) -> None:
        self.unknown = 0
        self._store = store
        self._catalogue = catalogue
        self._key = list_key(product, name)
        self._available = np.ones(catalogue.size, np.bool_)
        self._worker: Worker | None = None

    def available(self) -> Bool:
        """Return which items are in stock, by index of the catalogue; bool [I]."""
        return self._available

    def start(self) -> None:
        """Read the list now, and then in the background."""
        try:
            self.refresh()
        except StoreError as error:
            log.warning("all items count as in stock until the list is read: %s", error)
        self._worker = Worker("stock", self.refresh, pause_s=INTERVAL_S)
        self._worker.start()

    def refresh(self) -> None:
        """
        Read the list.

        Raises:
            StoreError: The store did not answer, or not with a set; the last view
                stands.
        """
        _, (reply,) = self._store.flush([], extra_commands=[(b"SMEMBERS", self._key)])
        if isinstance(reply, Exception):
            raise StoreError(f"{self._key.decode()}: {describe_error(reply)}")
        places = self._catalogue.index_of(hash_words(list(reply)))
        known = places[places >= 0]
        available = np.ones(self._catalogue.size, np.bool_)
        available[known] = False
        unknown = len(places) - len(known)
        if unknown > self.unknown:
            text = "%s: %d ids are no items of the catalogue"
            log.warning(text, self._key.decode(), unknown)
        self.unknown = unknown
        self._available = available

    def close(self) -> None:
        """Stop reading, and close the store."""
        if self._worker is not None:
            self._worker.stop()
        self._store.close()


def open_stock(
    url: str,
    catalogue: Catalogue,
    *,
    product: str,
    name: str,
    settings: StoreSettings,
) -> StockView:
    """
    Open the list of a product over its store, and start to read it.

    Args:
        url: Address of the store; empty for none.
        name: Name of the list; empty if all items are in stock.
        settings: Settings of the store.
    """
    if not (url and name):
        return StockView(NoStore(), catalogue, product=product, name=name)
    store = open_store(url, deadline_s=_DEADLINE_S, rules=settings.breaker)
    view = StockView(store, catalogue, product=product, name=name)
    view.start()
    return view

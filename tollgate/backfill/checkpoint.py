"""Store the progress of a backfill next to the values that it fills."""

from __future__ import annotations

from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.redis.redis_store import RedisStore

_TTL_S = 7 * 86_400


class Checkpoint:
    """
    Store the progress of one history into one state's values.

    It is stored in the same store: if the values are lost, it is lost too.

    Args:
        spec: The spec of the values.
        history: Fingerprint that distinguishes the history from others.
        store: The store of both.
    """

    def __init__(self, spec: FeatureSpec, history: str, store: RedisStore) -> None:
        state = f"tollgate:{spec.product}:{spec.state_hash:016x}"
        self._key = f"{state}.history:{history}".encode()  # not an entity's value
        self._store = store

    def read(self) -> int:
        """
        Return the number of purchases that are done; 0 when none is known.

        Raises:
            StoreError: The store did not reply.
        """
        _, (value,) = self._store.flush([], extra_commands=[(b"GET", self._key)])
        return int(value) if isinstance(value, bytes) and value.isdigit() else 0

    def write(self, done: int) -> None:
        """
        Store the number of purchases that are done.

        Raises:
            StoreError: The store did not reply, or refused.
        """
        command = (b"SET", self._key, str(done).encode(), b"EX", str(_TTL_S).encode())
        _, (reply,) = self._store.flush([], extra_commands=[command])
        if isinstance(reply, Exception):
            raise StoreError(f"the store refused: {reply}") from reply

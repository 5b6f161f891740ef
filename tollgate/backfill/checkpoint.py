"""How far a history has come into a store: kept beside the values it fills."""

from __future__ import annotations

from tollgate.errors import StoreError
from tollgate.features.spec import FeatureSpec
from tollgate.store.redis import RedisStore

_TTL_S = 7 * 86_400


class Checkpoint:
    """
    The place of one history in one state's values.

    It lies in the store: whatever takes the values away takes it away too.

    Args:
        spec: Whose values.
        history: What tells the history from others.
        store: Where both are.
    """

    def __init__(self, spec: FeatureSpec, history: str, store: RedisStore) -> None:
        state = f"tollgate:{spec.product}:{spec.state_hash:016x}"
        self._key = f"{state}.history:{history}".encode()  # no entity's value
        self._store = store

    def read(self) -> int:
        """
        Tell how many purchases are done; 0 when none is known.

        Raises:
            StoreError: The store has no answer.
        """
        _, (value,) = self._store.flush([], beside=[(b"GET", self._key)])
        return int(value) if isinstance(value, bytes) and value.isdigit() else 0

    def write(self, done: int) -> None:
        """
        Note how many purchases are done.

        Raises:
            StoreError: The store has no answer, or refused.
        """
        command = (b"SET", self._key, str(done).encode(), b"EX", str(_TTL_S).encode())
        _, (reply,) = self._store.flush([], beside=[command])
        if isinstance(reply, Exception):
            raise StoreError(f"the store refused: {reply}") from reply

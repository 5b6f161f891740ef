"""Name the states of hysteresis in the store, and change them by commands."""

from __future__ import annotations

from tollgate.policy.hysteresis import Hysteresis
from tollgate.store.redis.redis_store import HYSTERESIS, Command

STATE_TTL_S = 90 * 86_400  # of a machine that sends nothing, on the store's clock


def hysteresis_key(product: str, entity: str, machine: bytes) -> bytes:
    """Return the store key of a machine's state."""
    return b"tollgate:%b:hysteresis:%b:%b" % (
        product.encode(),
        entity.encode(),
        machine,
    )


def reading_command(
    key: bytes, readings: bytes, *, settings: Hysteresis, dry: bool
) -> Command:
    """
    Build the command that applies readings to the state of one machine.

    Args:
        key: Its key.
        readings: READING of tollgate/policy/hysteresis.py each, in the order of (time,
            hash).
        settings: The policy's section.
        dry: True to store nothing.

    Returns:
        A command; the reply has EVIDENCE of each reading.
    """
    mode = b"0" if dry else b"1"
    return (
        *(b"EVALSHA", HYSTERESIS.sha, 1, key),
        *(mode, settings.packed(STATE_TTL_S), readings),
    )

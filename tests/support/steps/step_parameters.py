"""A step of a running server, told something else than its release says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tollgate.schema import SLOT_FILE
from tollgate.server.serving.embedded import Embedded


@contextmanager
def told_otherwise(served: Embedded, step: str, **changes: str) -> Iterator[None]:
    """Change what a step is told, until the context ends."""
    active = served.serving["fraud"].active
    assert active is not None
    slot = served.triton.own_repository / step / str(active.slots[step]) / SLOT_FILE
    before = slot.read_bytes()
    content = json.loads(before)
    content["told"] |= changes
    slot.write_text(json.dumps(content))
    served.serving["fraud"].renew(step)
    try:
        yield
    finally:
        slot.write_bytes(before)
        served.serving["fraud"].renew(step)

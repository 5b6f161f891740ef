"""What a purchase that is sent again is answered: kept beside its record."""

from __future__ import annotations

from tollgate.journal.record import Records
from tollgate.store.connection import Command
from tollgate.store.decided import decided_key, keep_command, pack_decided


class AnswerKeeper:
    """
    Makes the commands that keep decisions for a window, from their records.

    Args:
        window_s: How long, from the decision on; 0 keeps none.
    """

    def __init__(self, *, window_s: int) -> None:
        self._window_us = window_s * 1_000_000

    def __call__(self, records: Records, now_us: int) -> list[Command]:
        """
        Make them; none for a decision whose window is over, or too long to keep.

        Args:
            records: Decisions.
            now_us: The clock.
        """
        release = records.release.encode()
        left_us = records.decided_us + self._window_us - now_us
        columns = zip(
            left_us.tolist(),
            records.transaction_id,
            records.fingerprint.tolist(),
            records.decision.tolist(),
            records.score.tolist(),
            records.degraded.tolist(),
            records.reason_codes,
            strict=True,
        )
        commands = []
        for left, name, fingerprint, decision, score, degraded, codes in columns:
            if left < 1_000:
                continue
            value = pack_decided(
                fingerprint,
                decision=decision,
                score=score,
                degraded=degraded,
                release=release,
                codes=codes,
            )
            if value:
                key = decided_key(records.product, name)
                commands.append(keep_command(key, value, window_ms=left // 1_000))
        return commands

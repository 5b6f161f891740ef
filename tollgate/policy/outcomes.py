"""Name the three levels of a decision in the words of a product."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from tollgate.schema import Decision

_WORD = re.compile(r"[a-z0-9_]{1,32}")
_RESERVED = ("errors", "degraded")  # other rows have these names in a trial's report


class Outcomes(msgspec.Struct, frozen=True):
    """
    Words of a product for the levels of a decision, the mildest first.

    The code and its records hold levels; words stand where text enters or leaves.
    """

    words: tuple[str, str, str] = ("approve", "review", "decline")

    @property
    def score_codes(self) -> tuple[str, str]:
        """Return the codes of the two thresholds of the score, the milder first."""
        _, middle, severest = self.words
        return f"SCORE_{middle.upper()}", f"SCORE_{severest.upper()}"

    @property
    def levels(self) -> dict[str, int]:
        """
        Map each word to its level.

        The default words are included: a record has them if its release was unknown
        when it was sealed.
        """
        both = (DEFAULT_OUTCOMES.words, self.words)
        return {word: at for words in both for at, word in enumerate(words)}


DEFAULT_OUTCOMES = Outcomes()


def outcomes_problem(words: Sequence[str]) -> str:
    """Describe why words cannot be the outcomes of a product; empty if they can."""
    if len(words) != len(Decision):
        return f"{len(words)} words, not {len(Decision)}"
    for word in words:
        if not _WORD.fullmatch(word):
            return f"{word!r} is not 1 to 32 of a to z, 0 to 9 and _"
        if word in _RESERVED:
            return f"{word} is reserved"
    if len(set(words)) < len(words):
        return f"{', '.join(words)}: a word stands there twice"
    return ""

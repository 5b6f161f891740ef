"""Names, hashes and times are refused with anything before or after them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tollgate.repository.field_types import Name, Sha256, SpecHash, UtcTime

SOUND = [
    (Name, "fraud-1"),
    (Sha256, "0123456789abcdef" * 4),
    (SpecHash, "0123456789abcdef"),
    (UtcTime, "2026-01-31T23:59:59Z"),
    (UtcTime, "2026-01-31T23:59:59.125Z"),
]


@pytest.mark.parametrize(("kind", "text"), SOUND)
@pytest.mark.parametrize("form", ["{}\n", "{} ", " {}", "\n{}", "{}/", ""])
def test_only_the_whole_text_is_taken(kind: Any, text: str, form: str) -> None:
    assert msgspec.convert(text, kind) == text
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(form.format(text), kind)

"""Types of fields that several kinds of files have: names, hashes and times."""

from __future__ import annotations

from typing import Annotated

import msgspec

# `\Z`, because `$` would allow a line feed at the end.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
SpecHash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
UtcTime = Annotated[
    str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\Z")
]

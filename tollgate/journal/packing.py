"""Pack integer columns into few bytes, and read bytes that may be damaged."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from tollgate.errors import JournalError

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

# Width codes of a column: 0 for no bytes, then 1, 2, 4 and 8 bytes.
_KINDS = tuple(np.dtype(name) for name in ("<u1", "<u1", "<u2", "<u4", "<u8"))
_LIMITS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFFFF], np.uint64)  # maxima of codes 0 to 3


class Reader:
    """
    Reads bytes from the front; raises a JournalError if a chunk ends early.

    Args:
        content: Content inside a chunk's seal.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, size: int) -> bytes:
        """Read a number of bytes."""
        end = self._at + size
        if end > len(self._content):
            missing = end - len(self._content)
            raise JournalError("a chunk", f"lacks {missing:,} bytes of its columns")
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def texts(self, lengths: I64) -> list[bytes]:
        """Read one text per length; int64 [N]."""
        if int(lengths.min()) < 0 or int(lengths.max()) > len(self._content):
            raise JournalError("a chunk", "a length in it is none")
        edges = [0, *lengths.cumsum().tolist()]
        joined = self.take(edges[-1])
        return [joined[start:stop] for start, stop in itertools.pairwise(edges)]

    def end(self) -> None:
        """Check that no bytes are left."""
        left = len(self._content) - self._at
        if left:
            raise JournalError("a chunk", f"has {left:,} bytes too many")


def pack_numbers(numbers: I64) -> bytes:
    """
    Pack integer columns; [M, N].

    First comes one byte per column with two width codes: of its smallest value (high
    half), and of the differences to it (low half). Then follow the smallest values in
    zigzag encoding, then the columns, both ordered by width.
    """
    low = numbers.min(axis=1)
    # Differences wrap around, so that uint64 values viewed as int64 survive.
    above = numbers.view(np.uint64) - low.view(np.uint64)[:, None]
    codes = np.searchsorted(_LIMITS, above.max(axis=1))
    zigzag = ((low << 1) ^ (low >> 63)).view(np.uint64)
    low_codes = np.searchsorted(_LIMITS, zigzag)
    parts = [(low_codes << 4 | codes).astype(np.uint8).tobytes()]
    for values, by in ((zigzag, low_codes), (above, codes)):
        parts += [
            values[by == code].astype(_KINDS[code]).tobytes()
            for code in sorted(set(by.tolist()) - {0})
        ]
    return b"".join(parts)


def unpack_numbers(reader: Reader, *, columns: int, rows: int) -> I64:
    """Unpack integer columns; [M, N]."""
    both = np.frombuffer(reader.take(columns), np.uint8).astype(np.int64)
    low_codes, codes = both >> 4, both & 15
    if int(low_codes.max()) >= len(_KINDS) or int(codes.max()) >= len(_KINDS):
        raise JournalError("a chunk", "a width in it is none")
    zigzag = _by_width(reader, low_codes, per_column=1)[:, 0]
    low = (zigzag >> np.uint64(1)) ^ (np.uint64(0) - (zigzag & np.uint64(1)))
    above = _by_width(reader, codes, per_column=rows)
    wrapped: U64 = above + low[:, None]
    return wrapped.view(np.int64)


def _by_width(reader: Reader, codes: I64, *, per_column: int) -> U64:
    values = np.zeros((len(codes), per_column), np.uint64)
    for code in sorted(set(codes.tolist()) - {0}):
        chosen = np.flatnonzero(codes == code)
        kind = _KINDS[code]
        raw = reader.take(kind.itemsize * per_column * len(chosen))
        values[chosen] = np.frombuffer(raw, kind).reshape(len(chosen), per_column)
    return values

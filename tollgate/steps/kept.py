"""
Cache the output tensors that many responses have in common.

Making tensors was a third of the decision step's Python (docs/performance-log.md).
Triton's stub writes a tensor to shared memory when it is first sent, and counts the
references to it there; so one tensor may be part of any number of responses.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tollgate.steps.triton import Array

MOST = 512  # tensors; one of 32 rows of codes takes a few KB of shared memory


class TensorCache:
    """
    Make responses, and cache tensors that are likely to occur again.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        names: Outputs with few values, decisions and codes.
        empty: Outputs of which only the empty text is cached: other values are a row's
            own.
        most: Most tensors to cache; further ones are made each time.
    """

    def __init__(
        self,
        pb: Any,
        *,
        names: Collection[str],
        empty: Collection[str] = (),
        most: int = MOST,
    ) -> None:
        self._pb = pb
        self._names = frozenset(names)
        self._empty = frozenset(empty)
        self._most = most
        self._tensors: dict[tuple[str, Any, int], Any] = {}

    def respond(self, outputs: Mapping[str, Array], bounds: Sequence[int]) -> list[Any]:
        """
        Split the outputs of a batch into one response per request.

        Args:
            outputs: By name, [N, 1] each.
            bounds: First row of each request, then the end of the last.
        """
        response = self._pb.InferenceResponse
        spans = list(itertools.pairwise(bounds))
        columns = [self._split(name, array, spans) for name, array in outputs.items()]
        return [response(list(tensors)) for tensors in zip(*columns, strict=True)]

    def _split(
        self, name: str, array: Array, spans: Sequence[tuple[int, int]]
    ) -> list[Any]:
        tensor = self._pb.Tensor
        if name not in self._names and name not in self._empty:
            return [tensor(name, array[start:stop]) for start, stop in spans]
        values = array[:, 0].tolist()
        found = []
        for start, stop in spans:
            value, rows = values[start], stop - start
            alike = rows == 1 or values[start:stop].count(value) == rows
            one = self._tensors.get((name, value, rows)) if alike else None
            if one is None:
                cacheable = alike and (not value or name in self._names)
                if cacheable and len(self._tensors) < self._most:
                    one = tensor(name, array[start:stop].copy())
                    self._tensors[name, value, rows] = one
                else:
                    one = tensor(name, array[start:stop])
            found.append(one)
        return found

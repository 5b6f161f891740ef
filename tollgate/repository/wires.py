"""
Follow the tensors between the steps of an ensemble and find mismatches.

Triton finds such mistakes too, but at load, one at a time, and not all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

UNKNOWN_TYPE = "TYPE_INVALID"  # type of a tensor that is left to the backend

# Code of the rule, tensor, problem, path in the ensemble's file.
Break = tuple[str, str, str, str]


class Tensor(msgspec.Struct, frozen=True):
    """
    A tensor at one end of a wire.

    Attributes:
        kind: Triton's name of its type, for example TYPE_FP32; UNKNOWN_TYPE fits all.
        dims: Shape of one row; -1 is any length.
        optional: True if a caller may leave it out.
        origin: Text that names the model that declares it.
        batched: True if Triton puts a dimension of rows before those declared.
    """

    kind: str
    dims: tuple[int, ...]
    optional: bool
    origin: str
    batched: bool = False

    def agrees(self, other: Tensor) -> bool:
        """
        Return whether a value of this tensor always fits the other one.

        Source: ensemble_utils.cc of triton-inference-server/core: either the shapes of
        a row or the shapes of a request must agree.
        """
        return UNKNOWN_TYPE in (self.kind, other.kind) or (
            self.kind == other.kind
            and (
                _same(self.dims, other.dims)
                or _same(self.request_dims, other.request_dims)
            )
        )

    @property
    def request_dims(self) -> tuple[int, ...]:
        """Shape in a request."""
        return (-1, *self.dims) if self.batched else self.dims

    def __str__(self) -> str:
        """Print type, shape and origin."""
        return f"{self.kind} {list(self.dims)} ({self.origin})"


def _same(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Return whether two shapes agree; -1 agrees with any length."""
    return len(first) == len(second) and all(
        one == other or -1 in (one, other)
        for one, other in zip(first, second, strict=True)
    )


def tensors_of(
    declared: Sequence[Any], *, origin: str, batched: bool = False
) -> dict[str, Tensor]:
    """
    Read the `input` or the `output` list of a configuration, by name.

    Args:
        origin: Text that names the model that declares them.
        batched: True if the model takes batches; this matters next to a model that does
            not.
    """
    return {
        entry.name: Tensor(
            kind=DataType.Name(entry.data_type),
            dims=tuple(entry.dims),
            optional=bool(getattr(entry, "optional", False)),
            origin=origin,
            batched=batched,
        )
        for entry in declared
    }


class Ends(msgspec.Struct, frozen=True):
    """
    The tensors that a model reads and writes.

    Attributes:
        inputs: Tensors by name; None if its configuration leaves them to the backend.
        outputs: Tensors by name; None if its configuration leaves them to the backend.
    """

    inputs: dict[str, Tensor] | None = None
    outputs: dict[str, Tensor] | None = None

    @classmethod
    def of(cls, config: ModelConfig, *, name: str) -> Ends:
        """Read a configuration that declares its tensors."""
        batched = config.max_batch_size > 0
        is_ensemble = config.HasField("ensemble_scheduling")
        words = "ensemble {}" if is_ensemble else "{} of " + name
        reads, writes = words.format("input"), words.format("output")
        return cls(
            inputs=tensors_of(config.input, origin=reads, batched=batched),
            outputs=tensors_of(config.output, origin=writes, batched=batched),
        )


class Wires:
    """
    The tensors of one ensemble, as its steps add them.

    Args:
        ensemble: The tensors that it reads and writes; those it does not declare are
            not checked.
    """

    def __init__(self, ensemble: Ends) -> None:
        self.ensemble = ensemble
        self._available = dict(ensemble.inputs or {})
        self._used: set[str] = set()

    def follow(self, steps: Sequence[Any], ends: Mapping[str, Ends]) -> Iterator[Break]:
        """Yield tensors that do not connect, over steps in data order."""
        for step in steps:
            given = ends[step.model_name]
            yield from self._input_breaks(step, given.inputs)
            yield from self._output_breaks(step, given.outputs)
            self._used |= set(step.input_map.values())
        yield from self._end_breaks()

    def _input_breaks(
        self, step: Any, declared: dict[str, Tensor] | None
    ) -> Iterator[Break]:
        """Compare the inputs of a step with the tensors that exist before it runs."""
        where = f"{step.model_name}: input_map"
        at = f"ensemble_scheduling.step[{step.model_name}]"
        for name, tensor in (declared or {}).items():
            if name not in step.input_map and not tensor.optional:
                problem = f"input {name} of {step.model_name} is not mapped"
                yield "TG101", where, problem, at
        for name, source in sorted(step.input_map.items()):
            here, entry = f"{where} {name}", f"{at}.input_map[{name}]"
            if declared is not None and name not in declared:
                yield "TG102", here, f"{step.model_name} has no such input", entry
            elif source not in self._available:
                if self.ensemble.inputs is None:
                    continue
                problem = (
                    "is neither an ensemble input nor an output of an earlier step"
                )
                yield "TG103", here, f"{source} {problem}", entry
            elif declared is not None:
                found = _mismatch(self._available[source], declared[name])
                for code, problem in found:
                    yield code, here, problem, entry

    def _output_breaks(
        self, step: Any, declared: dict[str, Tensor] | None
    ) -> Iterator[Break]:
        """Add the outputs of a step to the tensors; no tensor may be written twice."""
        where = f"{step.model_name}: output_map"
        for name, target in sorted(step.output_map.items()):
            here = f"{where} {name}"
            at = f"ensemble_scheduling.step[{step.model_name}].output_map[{name}]"
            if declared is not None and name not in declared:
                yield "TG102", here, f"{step.model_name} has no such output", at
            elif target in self._available:
                problem = f"{target} is already there: {self._available[target].origin}"
                yield "TG106", here, problem, at
            else:
                unknown = Tensor(
                    kind=UNKNOWN_TYPE, dims=(), optional=False, origin=here
                )
                self._available[target] = declared[name] if declared else unknown

    def _end_breaks(self) -> Iterator[Break]:
        """Compare the remaining tensors with the ensemble's inputs and outputs."""
        inputs, outputs = self.ensemble.inputs or {}, self.ensemble.outputs or {}
        for name in sorted(inputs.keys() - self._used):
            yield "TG107", f"input {name}", "no step reads it", f"input[{name}]"
        for name, tensor in outputs.items():
            where, at = f"output {name}", f"output[{name}]"
            made = None if name in inputs else self._available.get(name)
            if made is None:
                yield "TG108", where, "no step produces it", at
            elif not made.agrees(tensor):
                yield "TG104", where, f"{made} does not fit {tensor}", at


def _mismatch(given: Tensor, taken: Tensor) -> Iterator[tuple[str, str]]:
    """Compare the two ends of one wire; yield code and problem."""
    if not given.agrees(taken):
        yield "TG104", f"{given} does not fit {taken}"
    elif given.optional != taken.optional:
        first, second = (given, taken) if given.optional else (taken, given)
        problem = f"optional as {first.origin} but not as {second.origin}; both must be"
        yield ("TG105" if given.optional else "TG121"), problem

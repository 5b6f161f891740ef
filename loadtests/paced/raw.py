"""Read and write raw results: every request of a run, and its circumstances."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.paced.scenario import Scenario
from tollgate.errors import InputError
from tollgate.load.arrivals import F64
from tollgate.load.results import CALL

VERSION = 2
# Version whose layers came from Triton's traces, with other bounds: left out.
_BEFORE = 1

# A batch of a step: its index in STEPS; when the step took it, from the beginning, and
# how long it worked, µs; rows; and the batch of the feature step that its first request
# came from, an index among the batches, or -1.
BATCH = np.dtype(
    [
        ("step", np.uint8),
        ("start_us", np.int64),
        ("took_us", np.int32),
        ("rows", np.uint16),
        ("origin", np.int32),
    ]
)
STEPS = ("features", "model", "decision")


def no_batches() -> npt.NDArray[np.void]:
    """Return an empty array of batches, for runs that did not record them."""
    return np.zeros(0, BATCH)


class Mark(msgspec.Struct, frozen=True):
    """A named moment of the run at which a part begins."""

    at_s: float
    words: str


class Server(msgspec.Struct, frozen=True):
    """
    Counts of the server, warm-up included.

    Attributes:
        release: Release that decided.
        purchases: Rows that reached the feature step.
        feature_batches: Number of calls of the feature step.
        model_batches: Number of calls of the model.
        writes: Values written to the store (SET).
        journalled: Records that the journal accepted.
        cpu_s: Processor time of all its processes and of the store.
        pss_mb: Their memory at the end, 10^6 bytes.
    """

    release: str
    purchases: int
    feature_batches: int
    model_batches: int
    writes: int
    journalled: int
    cpu_s: float
    pss_mb: float


class About(msgspec.Struct, frozen=True):
    """
    Description of a run.

    Attributes:
        run: Number of the run, from 1.
        label: The user's label for the measurement; may be empty.
        seed: Seed of arrivals and other random draws.
        driver: `compiled` or `python`.
        connections: Number of connections that the requests shared.
        command: Command that repeats the run.
        measured: Date, commit, machine and versions, in one line.
        store: Description of the store's contents before the run.
        kinds: Names of the ways in which calls end, by the number in the file; the
            first is an answer.
        examples: Kind -> message of the first call of that kind.
        marks: Moments at which the run's parts begin.
        sender_cpu_s: Processor time of the sender.
        server: Counts of the server; None where it was not ours to query.
        version: Version of this format.
    """

    name: str
    scenario: Scenario
    run: int
    label: str
    seed: int
    driver: str
    connections: int
    command: str
    measured: str
    store: str
    kinds: tuple[str, ...]
    examples: dict[str, str]
    marks: tuple[Mark, ...]
    sender_cpu_s: float
    server: Server | None = None
    version: int = VERSION


class Raw(msgspec.Struct, frozen=True, eq=False):
    """
    One run.

    Attributes:
        calls: CALL [N].
        layers_ms: Layer -> time of each request in it, for requests that were due after
            the warm-up and answered; float64 [M]. Empty when it was not recorded.
        batches: BATCH [B], by step and start. Empty when it was not recorded.
    """

    about: About
    calls: npt.NDArray[np.void]
    layers_ms: dict[str, F64]
    batches: npt.NDArray[np.void] = msgspec.field(default_factory=no_batches)


def write_raw(path: Path, raw: Raw) -> None:
    """Write a run atomically: a zip of NumPy arrays, `about` as JSON."""
    about = np.frombuffer(msgspec.json.encode(raw.about), np.uint8)
    layers = {f"layer_{name}_ms": spent for name, spent in raw.layers_ms.items()}
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        np.savez_compressed(
            file, about=about, calls=raw.calls, batches=raw.batches, **layers
        )
    part.replace(path)


def read_raw(path: Path) -> Raw:
    """
    Read a run.

    Raises:
        InputError: The file does not exist, is no raw result, or has another version.
    """
    try:
        with np.load(path) as arrays:
            about = msgspec.json.decode(arrays["about"].tobytes())
            version = about.get("version")
            if version not in (_BEFORE, VERSION):
                raise InputError(path, f"version {version} is not {VERSION}")
            if version == _BEFORE:
                return Raw(msgspec.convert(about, About), _calls(arrays), {})
            return Raw(
                about=msgspec.convert(about, About),
                calls=_calls(arrays),
                layers_ms={
                    name.removeprefix("layer_").removesuffix("_ms"): arrays[name]
                    for name in arrays.files
                    if name.startswith("layer_")
                },
                batches=arrays["batches"].astype(BATCH, copy=False),
            )
    except (OSError, ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(path, f"is no raw result: {error}") from error


def _calls(arrays: Mapping[str, npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    return arrays["calls"].astype(CALL, copy=False)

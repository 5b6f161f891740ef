"""Files of raw results: every request of a run, and what must be read with them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.open_loop import F64
from loadtests.paced.calls import CALL
from loadtests.paced.scenario import Scenario
from tollgate.errors import InputError

VERSION = 2
# Its layers were cut by Triton's traces, elsewhere: they are left out.
_BEFORE = 1

# A batch of a step: its place in STEPS; when the step took it, from the beginning, and
# how long it worked, µs; rows; and the batch of the feature step that its first request
# came from, a place among the batches, or -1.
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
    """Make what stands for batches where nobody looked."""
    return np.zeros(0, BATCH)


class Mark(msgspec.Struct, frozen=True):
    """Something that begins at a moment of the run."""

    at_s: float
    words: str


class Server(msgspec.Struct, frozen=True):
    """
    What the server counted, warm-up included.

    Attributes:
        release: Who decided.
        purchases: Rows that reached the feature step.
        feature_batches: Times it was called.
        model_batches: Times the model was called.
        writes: Values that the store wrote (SET).
        journalled: Records that the journal took.
        cpu_s: Processor time of all its processes and the store's.
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
    What a run was.

    Attributes:
        name: Of the scenario.
        scenario: As it was run.
        run: Which of several, from 1.
        label: What the user calls what was measured; empty for nothing.
        seed: Of arrivals and what else is drawn.
        driver: `compiled` or `python`.
        connections: That the requests shared.
        command: How to repeat it.
        measured: When, at which commit, on what, with what, in one line.
        store: What the store held before, in words.
        kinds: How calls end, by the number in the file; the first is an answer.
        examples: Kind -> words that came with the first of it.
        marks: Where the run's parts begin.
        sender_cpu_s: Processor time of the sender.
        server: What the server counted; None where it was not ours to ask.
        version: Of this format.
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
        about: What it was.
        calls: CALL [N].
        layers_ms: Layer -> what it took of each request that was due after the warm-up
            and answered; float64 [M]. Empty when nobody looked.
        batches: BATCH [B], by step and start. Likewise.
    """

    about: About
    calls: npt.NDArray[np.void]
    layers_ms: dict[str, F64]
    batches: npt.NDArray[np.void] = msgspec.field(default_factory=no_batches)


def write_raw(path: Path, raw: Raw) -> None:
    """Write a run, as a whole or not at all: a zip of NumPy arrays, `about` as JSON."""
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
        InputError: There is no such file, it is none of ours, or of another version.
    """
    try:
        with np.load(path) as arrays:
            told = msgspec.json.decode(arrays["about"].tobytes())
            version = told.get("version")
            if version not in (_BEFORE, VERSION):
                raise InputError(path, f"version {version} is not {VERSION}")
            if version == _BEFORE:
                return Raw(msgspec.convert(told, About), _calls(arrays), {})
            return Raw(
                about=msgspec.convert(told, About),
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

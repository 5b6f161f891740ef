"""
Build a TensorRT plan from an ONNX model, on the machine and GPU that will run it.

Everything before the builder runs here without a GPU: reading the model, checking the
operators, choosing the precision. This project's tests have never run the builder
itself: docs/conversion.md says so.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import onnx

from converters.onnx_from_onnx import read_onnx
from converters.sources.formats import format_of
from converters.tensorrt_operators import unsupported
from tollgate.errors import (
    ConversionError,
    DeviceError,
    InputError,
    install_remedy,
)
from tollgate.repository.atomic import replace_file
from tollgate.repository.hashes import plan_record
from tollgate.repository.plan import PlanRecord
from tollgate.schema import FEATURES, MAX_BATCH_ROWS

PRECISIONS = ("fp32", "fp16", "int8")
# Rows of each optimization profile: minimum, optimum, maximum. The first accepts every
# batch, because Triton uses only that one if a configuration names none.
PROFILES = ((1, MAX_BATCH_ROWS, MAX_BATCH_ROWS), (1, 8, 8), (1, 1, 1))
_SHOWN = 3  # operators that an error names
_WORKSPACE_BYTES = 1 << 30


def engine_from_onnx(
    path: Path,
    out: Path,
    *,
    precision: str = "fp32",
    timing_cache: Path | None = None,
) -> PlanRecord:
    """
    Build a plan with the profiles of `PROFILES`, and write it with its record.

    Args:
        path: The model: `features` float32 [N, F] to `probabilities`, N free.
        out: Path of the plan to write; its record is written next to it.
        precision: "fp32"; "fp16", which rounds features too, so a value may cross a
            tree's threshold; "int8", for a graph that was quantised (with
            QuantizeLinear nodes).
        timing_cache: File that stores the builder's measurements, for the next build on
            the same GPU; it is created if it does not exist.

    Raises:
        InputError: The model cannot be read, or a file cannot be written.
        ConversionError: TensorRT does not support it; the error names the operators.
        DeviceError: This machine has no GPU or no TensorRT.
    """
    if format_of(path) != "onnx":
        raise InputError(path, "is no ONNX file")
    model = read_onnx(path)
    columns = _require_buildable(model, precision=precision)
    trt, gpu = require_device()
    serialized = model.SerializeToString()
    plan = _built(
        trt, serialized, columns=columns, precision=precision, cache=timing_cache
    )
    record = PlanRecord(
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        onnx_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        tensorrt=str(trt.__version__),
        gpu=gpu,
        precision=precision,
        profiles=PROFILES,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    try:
        replace_file(out, plan)
        text = msgspec.json.format(msgspec.json.encode(record), indent=2)
        replace_file(plan_record(out), text + b"\n")
    except OSError as error:
        raise InputError(out, f"cannot be written: {error.strerror}") from error
    return record


def _require_buildable(model: onnx.ModelProto, *, precision: str) -> int:
    """Refuse what TensorRT would not build correctly; return the number of features."""
    if precision not in PRECISIONS:
        raise ConversionError(
            f"precision is {precision!r}; there are {', '.join(PRECISIONS)}"
        )
    found = unsupported(model)
    if found:
        shown = "; ".join(map(str, found[:_SHOWN]))
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        trees = any("TreeEnsemble" in one.operator for one in found)
        hint = ": convert it to plain operators (tensorize)" if trees else ""
        raise ConversionError(f"TensorRT does not take this model: {shown}{more}{hint}")
    kinds = {node.op_type for node in model.graph.node}
    if precision == "int8" and "QuantizeLinear" not in kinds:
        raise ConversionError(
            "int8 needs a graph with QuantizeLinear nodes, which say the ranges; "
            "convert it with static quantization"
        )
    inputs = [(one.name, one.type.tensor_type.shape.dim) for one in model.graph.input]
    if len(inputs) == 1 and inputs[0][0] == FEATURES and len(inputs[0][1]) == 2:
        free, columns = inputs[0][1]
        if columns.dim_value and not free.dim_value:
            return int(columns.dim_value)
    raise ConversionError(f"the model does not read {FEATURES} [N, F] alone, N free")


def require_device(devices: Path = Path("/dev")) -> tuple[Any, str]:
    """
    Find TensorRT and a GPU.

    Args:
        devices: Folder where the machine lists its GPUs.

    Returns:
        The library's module, and the name of the first GPU.

    Raises:
        DeviceError: TensorRT or a GPU is missing.
    """
    if not any(devices.glob("nvidia[0-9]*")):
        raise DeviceError(
            "this machine shows no NVIDIA GPU, and a TensorRT plan fits only the kind "
            "of GPU that it was built on",
            remedy="build it on the machine that will serve it",
        )
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise DeviceError(
            f"TensorRT cannot be imported ({error})",
            remedy=install_remedy("tensorrt"),
        ) from error
    return trt, _gpu_name(Path("/proc/driver/nvidia/gpus"))


def _gpu_name(folder: Path) -> str:
    """Read the name of the first GPU from its driver."""
    for path in sorted(folder.glob("*/information")):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                return value.strip()
    return "unknown"


def _built(
    trt: Any, model: bytes, *, columns: int, precision: str, cache: Path | None
) -> bytes:
    """Parse and build; return the serialized plan."""
    builder = trt.Builder(trt.Logger(trt.Logger.WARNING))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.WARNING))
    if not parser.parse(model):
        said = [parser.get_error(at).desc() for at in range(parser.num_errors)]
        raise ConversionError(f"TensorRT cannot read the model: {'; '.join(said)}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    # TF32, on by default, keeps 10 bits of a factor: leaf values would lose the rest.
    config.clear_flag(trt.BuilderFlag.TF32)
    if precision != "fp32":
        config.set_flag(getattr(trt.BuilderFlag, precision.upper()))
    _add_profiles(builder, config, columns=columns, profiles=PROFILES)
    if cache is not None:
        stored = cache.read_bytes() if cache.exists() else b""
        timings = config.create_timing_cache(stored)
        config.set_timing_cache(timings, ignore_mismatch=False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ConversionError("TensorRT built no plan; what it said stands above")
    if cache is not None:
        replace_file(cache, bytes(config.get_timing_cache().serialize()))
    return bytes(plan)


def _add_profiles(
    builder: Any,
    config: Any,
    *,
    columns: int,
    profiles: Sequence[tuple[int, int, int]],
) -> None:
    for rows in profiles:
        profile = builder.create_optimization_profile()
        least, tuned, most = ((one, columns) for one in rows)
        profile.set_shape(FEATURES, least, tuned, most)
        config.add_optimization_profile(profile)

"""
Check that the TensorRT plan next to a published model was built from that model.

A plan fits one TensorRT and one kind of GPU, so it is built on the machine that serves
it. It is no part of a version: releases do not name it, publishing does not copy it.
Its record ties it to the version: the record names the model.onnx.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.hashes import PLAN_FILE, SHORT_DIGITS, hash_file, plan_record
from tollgate.repository.models.onnx_model import MODEL_FILE

PLATFORM = "tensorrt_plan"


class PlanRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The record of how a plan was built.

    Attributes:
        plan_sha256: Hash of the plan.
        onnx_sha256: Hash of the model it was built from.
        tensorrt: Version of the library that built it; only that one runs it.
        gpu: Name of the GPU it was built on.
        precision: "fp32", "fp16" or "int8".
        profiles: Rows that each optimization profile takes: least, tuned for, most.
        created: Time of the build, RFC 3339 in UTC.
    """

    plan_sha256: str
    onnx_sha256: str
    tensorrt: str
    gpu: str
    precision: str
    profiles: tuple[tuple[int, int, int], ...]
    created: str


def read_plan_record(plan: Path) -> PlanRecord:
    """
    Read the record that lies next to a plan.

    Raises:
        RepositoryError: It is missing, or is no such record.
    """
    path = plan_record(plan)
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlanRecord)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RepositoryError(path, str(exc)) from exc


def plan_findings(version: Path, config: ModelConfig) -> list[Finding]:
    """
    Find why the plan of a version does not belong to its model.

    Args:
        version: Directory with the files of the version.
        config: Configuration of the step; if it runs no plan, none is needed.
    """
    if config.platform != PLATFORM:
        return []
    path = version / (config.default_model_filename or PLAN_FILE)
    if not path.is_file():
        problem = (
            "is missing: build it on the machine that serves it, "
            f"tollgate engine {version / MODEL_FILE} --out {path}"
        )
        return [Finding(code="TG316", file=str(path), where="", problem=problem)]
    findings: list[Finding] = []
    with collecting(findings, code="TG316"):
        record = read_plan_record(path)
        file = str(plan_record(path))
        findings += [
            Finding(code="TG316", file=file, where=where, problem=problem)
            for where, problem in _breaks(record, path, model=version / MODEL_FILE)
        ]
    return findings


def _breaks(
    record: PlanRecord, plan: Path, *, model: Path
) -> Iterator[tuple[str, str]]:
    """Yield where the record differs from the two files."""
    for where, named, path in (
        ("plan_sha256", record.plan_sha256, plan),
        ("onnx_sha256", record.onnx_sha256, model),
    ):
        found = hash_file(path)
        if found != named:
            short, other = named[:SHORT_DIGITS], found[:SHORT_DIGITS]
            yield (
                where,
                f"{path.name} is another: record {short}…, file {other}…; "
                "build the plan again",
            )

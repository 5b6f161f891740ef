"""Choose whether model instances run on GPU or CPU on this machine."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)

# Passed to the backend, which also writes it to the server's log.
REQUESTED_KIND = "tollgate_requested_instance_kind"


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether this machine shows an NVIDIA GPU."""
    return any(devices.glob("nvidia[0-9]*"))


def placed(config_json: str, *, gpu: bool) -> str:
    """
    Move the GPU instances of a configuration to the CPU if there is no GPU.

    Triton itself refuses KIND_GPU there, and the same repository serves both kinds of
    machine.

    Returns:
        The configuration to load; unchanged if it requires nothing that is missing.
    """
    if gpu or "KIND_GPU" not in config_json:
        return config_json
    from google.protobuf import json_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

    config = json_format.Parse(config_json, ModelConfig())
    for group in config.instance_group:
        if group.kind == ModelInstanceGroup.KIND_GPU:
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]
            config.parameters[REQUESTED_KIND].string_value = "KIND_GPU"
            log.warning(
                "%s: instance_group asks for KIND_GPU; this machine has no GPU, so it "
                "runs on the CPU",
                config.name,
            )
    text: str = json_format.MessageToJson(
        config, preserving_proto_field_name=True, indent=None
    )
    return text

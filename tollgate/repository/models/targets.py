"""
List the Triton releases that Tollgate proves models for: contents and ONNX formats.

Python and onnxruntime are those of NVIDIA's compatibility table (Triton's
documentation). The formats that an onnxruntime reads were tried: for each release one
model per operator set and per IR version, up to the first that it refuses.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from tollgate.errors import InputError

ML_DOMAIN = "ai.onnx.ml"


class Target(msgspec.Struct, frozen=True):
    """
    One release of Triton.

    Attributes:
        release: Its name, year and month.
        python: Python version of its image.
        onnxruntime: onnxruntime version of its image.
        trtllm_tensorrt: TensorRT version of its TensorRT-LLM image, the only one for
            which the table has it; the plain image may carry another.
        opset: Newest operator set of ai.onnx that its onnxruntime reads.
        ml_opset: Newest operator set of ai.onnx.ml that its onnxruntime reads.
        ir: Newest file format version that it reads.
    """

    release: str
    python: str
    onnxruntime: str
    trtllm_tensorrt: str
    opset: int
    ml_opset: int
    ir: int

    @property
    def newest(self) -> Mapping[str, int]:
        """Newest operator set by domain, the default domain as the empty name."""
        return {"": self.opset, ML_DOMAIN: self.ml_opset}


OURS = Target(
    release="24.10",
    python="3.10",
    # The release has 1.19.2, which has no wheel for Python 3.13; 1.20 is the first.
    onnxruntime="1.20.1" if sys.version_info >= (3, 13) else "1.19.2",
    trtllm_tensorrt="10.4.0",
    opset=21,
    ml_opset=5,
    ir=10,
)
"""The server that this project starts, and the onnxruntime it installs."""

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        one.release: one
        for one in (
            OURS,
            Target(
                release="25.10",
                python="3.12",
                onnxruntime="1.23.1",
                trtllm_tensorrt="10.11.0.33",
                opset=23,
                ml_opset=5,
                ir=11,
            ),
            Target(
                release="26.07",
                python="3.12",
                onnxruntime="1.27.0",
                trtllm_tensorrt="10.14.1.48",
                opset=26,
                ml_opset=5,
                ir=13,
            ),
        )
    }
)


def target(name: str) -> Target:
    """
    Look up a release.

    Raises:
        InputError: The table does not have it.
    """
    found = TARGETS.get(name)
    if found is None:
        raise InputError(
            "target", f"{name!r} is not in the table; it has {', '.join(TARGETS)}"
        )
    return found

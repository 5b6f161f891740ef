"""Run an ONNX model as the server's model step would."""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime

from converters.model import F32
from tollgate.errors import ConversionError
from tollgate.schema import FEATURES, PROBABILITIES

Infer = Callable[[F32], F32]

RUNTIME = f"onnxruntime {onnxruntime.__version__}"


def onnx_runner(model: bytes) -> Infer:
    """
    Load a model on one CPU thread, as the model step's configuration does.

    Returns:
        A function from `features` float32 [N, F] to `probabilities` float32 [N, K].

    Raises:
        ConversionError: onnxruntime cannot load it, or its inputs and outputs are
            not those of a model step.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        # onnxruntime's errors have no common base; they share a module.
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        raise ConversionError(f"{RUNTIME} cannot load the model: {error}") from error
    inputs = [(i.name, i.type) for i in session.get_inputs()]
    outputs = [(o.name, o.type) for o in session.get_outputs()]
    wanted = ([(FEATURES, "tensor(float)")], [(PROBABILITIES, "tensor(float)")])
    if (inputs, outputs) != wanted:
        raise ConversionError(
            f"the model maps {inputs} to {outputs}; a model step maps "
            f"{wanted[0]} to {wanted[1]}"
        )

    def infer(rows: F32) -> F32:
        answer: F32 = session.run([PROBABILITIES], {FEATURES: rows})[0]
        return answer

    return infer

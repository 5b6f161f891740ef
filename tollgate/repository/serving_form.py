"""
Choose the form in which a product is served, and check that it fits the product.

The repository is an ensemble of three steps in any form. Served as an ensemble, each
step is a model of its own. Served fused, the three run in one model.
"""

from __future__ import annotations

from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tollgate.errors import RepositoryError
from tollgate.repository.product_models import Product
from tollgate.repository.slo import Form

QUEUE_DELAY_PARAMETER = "fused_queue_delay_us"  # of the ensemble's configuration
# Larger batches for a wait that is short for a lone request (docs/performance-log.md).
QUEUE_DELAY_US = 1000
_PYTHON, _ONNX = "python", "onnxruntime"


def require_form(product: Product, form: Form) -> None:
    """
    Check that a product can be served in a form.

    Raises:
        RepositoryError: It cannot be fused: it has other steps than features, model and
            decision, or its model runs elsewhere than in onnxruntime on the CPU.
    """
    if form == "ensemble":
        return
    roles = {
        product.features_step: _PYTHON,
        product.model_step: _ONNX,
        product.decision_step: _PYTHON,
    }
    if product.steps.keys() != roles.keys() or len(roles) != 3:
        problem = f"has the steps {', '.join(product.steps)}, not three"
        raise _unfusable(product, product.name, problem, where="step")
    for step, backend in roles.items():
        config = product.steps[step]
        if config.backend != backend:
            problem = f"is {config.backend or config.platform or 'missing'}"
            problem += f", not {backend}"
            raise _unfusable(product, step, problem, where="backend")
    model = product.steps[product.model_step]
    if ModelInstanceGroup.KIND_GPU in {one.kind for one in model.instance_group}:
        problem = "is KIND_GPU, not KIND_CPU"
        raise _unfusable(product, model.name, problem, where="instance_group")
    if model.optimization.HasField("execution_accelerators"):
        problem = "has execution_accelerators"
        raise _unfusable(product, model.name, problem, where="optimization")
    for tensor in (*model.input, *model.output):
        if tensor.HasField("reshape"):
            problem = f"{tensor.name} has a reshape"
            raise _unfusable(product, model.name, problem, where="reshape")
    queue_delay_us(product.ensemble, source=product.config_path(product.name))


def _unfusable(
    product: Product, model: str, problem: str, *, where: str
) -> RepositoryError:
    text = f"{problem}: {product.name} can be served as an ensemble only, not fused"
    return RepositoryError(product.config_path(model), text, where=where)


def queue_delay_us(ensemble: ModelConfig, *, source: Path | str) -> int:
    """
    Read how long a fused model waits to fill a batch, µs.

    Args:
        ensemble: Configuration of the ensemble, whose parameter sets it.
        source: File that the configuration was read from, for the error.

    Raises:
        RepositoryError: The parameter is not a whole number.
    """
    if QUEUE_DELAY_PARAMETER not in ensemble.parameters:
        return QUEUE_DELAY_US
    text = ensemble.parameters[QUEUE_DELAY_PARAMETER].string_value
    if not text.isdecimal():
        problem = f"{text!r} is not whole microseconds"
        raise RepositoryError(source, problem, where=QUEUE_DELAY_PARAMETER)
    return int(text)

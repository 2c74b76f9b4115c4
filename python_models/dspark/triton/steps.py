"""Engine steps as Triton requests: the callee's side (`answer_step`) and the caller's (`remote_step`, a BLS call)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from dspark.engines.codec import ContractRecord, decode, encode, tensor_specs
from dspark.engines.contract import DrafterResult, DrafterStep, TargetResult, TargetStep
from dspark.errors import DSparkError, EngineError
from dspark.triton.requests import triton_error

Step = TypeVar("Step", TargetStep, DrafterStep)
Result = TypeVar("Result", TargetResult, DrafterResult)


def answer_step(request: Any, step_type: type[Step], run: Callable[[Step], ContractRecord]) -> Any:
    """Run the step that a request carries; what fails becomes an error response, never an exception."""
    try:
        step = decode(step_type, {tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        return pb_utils.InferenceResponse(_tensors(run(step)))
    except DSparkError as error:
        return pb_utils.InferenceResponse(error=triton_error(error))
    except Exception as error:        # an engine's own exception ends this step, not the process
        pb_utils.Logger.log_error(f"step failed: {error!r}")
        return pb_utils.InferenceResponse(error=triton_error(EngineError(f"the step failed: {error!r}")))


def remote_step(model: str, result_type: type[Result]) -> Callable[[Any], Result]:
    """A step of the model `model`, as a callable. Raises EngineError when the model answers with an error."""
    names = [spec.name for spec in tensor_specs(result_type)]

    def run(step: ContractRecord) -> Result:
        request = pb_utils.InferenceRequest(model_name=model, requested_output_names=names, inputs=_tensors(step))
        response = request.exec()
        if response.has_error():
            raise EngineError(f"{model}: {response.error().message()}")
        return decode(result_type, {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()})

    return run


def _tensors(record: ContractRecord) -> list[Any]:
    return [pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in encode(record).items()]

"""A client's request and its responses, as Triton's Python backend has them."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from dspark.errors import CancelledRequestError, DSparkError, EngineError, InvalidRequestError, OverloadedError
from dspark.orchestrator import Chunk, RequestTensors
from dspark.triton.outbox import Outbox

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CANCELLATION_CHECK_S = 0.1           # asking Triton is a message between processes: not in every round


def request_tensors(request: Any) -> RequestTensors:
    """The inputs that a request brings, by name."""
    found = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    names = {field.name for field in dataclasses.fields(RequestTensors)} - {"parameters"}
    return RequestTensors(**{name: found[name] for name in names & found.keys()}, parameters=request.parameters())


def triton_error(error: DSparkError) -> Any:
    """The one place where our errors become Triton's.

    The text begins with gRPC's name of the code, because an error inside a gRPC stream is its text alone.
    """
    code, name = pb_utils.TritonError.INTERNAL, "INTERNAL"
    if isinstance(error, InvalidRequestError):
        code, name = pb_utils.TritonError.INVALID_ARG, "INVALID_ARGUMENT"
    elif isinstance(error, OverloadedError | EngineError):
        code, name = pb_utils.TritonError.UNAVAILABLE, "UNAVAILABLE"
    elif isinstance(error, CancelledRequestError):
        code, name = pb_utils.TritonError.CANCELLED, "CANCELLED"
    return pb_utils.TritonError(f"{name}: {error}", code)


class TritonSink:
    """Sends one request's output by way of `outbox`; a request without `stream` gets a single response, its last."""

    def __init__(self, request: Any, outbox: Outbox) -> None:
        self._sender = request.get_response_sender()
        self._outbox = outbox
        self._cancelled = False
        self._asked = time.monotonic()

    def send(self, chunk: Chunk) -> None:
        self._outbox.put(lambda: self._sender.send(_response(chunk)))

    def finish(self, chunk: Chunk) -> None:
        self._outbox.put(lambda: self._sender.send(_response(chunk), flags=FINAL))

    def fail(self, error: DSparkError) -> None:
        self._outbox.put(
            lambda: self._sender.send(pb_utils.InferenceResponse(error=triton_error(error)), flags=FINAL)
        )

    def is_cancelled(self) -> bool:
        """Whether the client has gone, as of about CANCELLATION_CHECK_S ago."""
        now = time.monotonic()
        if now - self._asked >= CANCELLATION_CHECK_S:
            self._asked = now
            self._outbox.put(self._ask)
        return self._cancelled

    def _ask(self) -> None:
        self._cancelled = self._cancelled or self._sender.is_cancelled()


def _response(chunk: Chunk) -> Any:
    reason = "" if chunk.finish_reason is None else chunk.finish_reason.value
    return pb_utils.InferenceResponse([
        pb_utils.Tensor("text_output", _strings(chunk.text)),
        pb_utils.Tensor("token_ids", np.array(chunk.token_ids, np.int32)),
        pb_utils.Tensor("token_texts", _strings(*chunk.token_texts)),
        pb_utils.Tensor("token_origins", np.array(chunk.token_origins, np.int32)),
        pb_utils.Tensor("log_probs", np.array(chunk.log_probs, np.float32)),
        pb_utils.Tensor("finish_reason", _strings(reason)),
        pb_utils.Tensor("statistics", _strings(chunk.statistics)),
    ])


def _strings(*texts: str) -> Any:
    return np.array([text.encode() for text in texts], np.object_)

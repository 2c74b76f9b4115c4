"""Requests to the `dspark` model over gRPC: one stream a request, many at once, tokens as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from dspark_client.errors import RemoteError

MODEL = "dspark"
FIRST, ACCEPTED, CORRECTION, BONUS = range(4)        # token_origins: where a token of an answer came from
TEXT, INT, FLOAT, SEED, FLAG = "BYTES", "INT32", "FP32", "UINT64", "BOOL"
NUMPY = {TEXT: np.object_, INT: np.int32, FLOAT: np.float32, SEED: np.uint64, FLAG: np.bool_}
DATATYPES = {
    "text_input": TEXT, "input_ids": INT, "messages": TEXT, "max_tokens": INT, "temperature": FLOAT, "top_k": INT,
    "top_p": FLOAT, "min_p": FLOAT, "repetition_penalty": FLOAT, "seed": SEED, "stop_words": TEXT,
    "stop_token_ids": INT, "ignore_eos": FLAG, "exclude_input_in_output": FLAG, "return_log_probs": FLAG,
    "max_draft_tokens": INT, "min_draft_tokens": INT, "policy": TEXT, "sampling_parameters": TEXT, "stream": FLAG,
}
TRITONS_OWN_ERRORS = {           # texts without a code: a dead model process, inputs that config.pbtxt excludes
    "Stub process": "UNAVAILABLE", "inference input": "INVALID_ARGUMENT", "unexpected shape": "INVALID_ARGUMENT",
}


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; role is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True)
class Generation:
    """One request, in the names of the model's inputs; what is None is not sent and takes the server's default.

    Exactly one of `text_input`, `input_ids` and `messages` says what to continue.
    """

    text_input: str | None = None
    input_ids: Sequence[int] | None = None
    messages: Sequence[Message] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_words: Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    exclude_input_in_output: bool | None = None
    return_log_probs: bool | None = None
    max_draft_tokens: int | None = None
    min_draft_tokens: int | None = None
    policy: str | None = None                         # for servers with switchable policies
    sampling_parameters: str | None = None
    stream: bool = True

    def with_messages(self, messages: Sequence[Message]) -> Generation:
        """The same settings for another conversation."""
        return replace(self, text_input=None, input_ids=None, messages=messages)

    def tensors(self) -> dict[str, np.ndarray]:
        """The inputs that are set, each a vector."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if self.messages is not None:
            values["messages"] = json.dumps([{"role": m.role, "content": m.content} for m in self.messages])
        return {name: _vector(value, DATATYPES[name]) for name, value in values.items()}


@dataclass(frozen=True)
class Chunk:
    """One response of a stream. `finish_reason` is empty until the last one, which also carries the statistics."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    token_texts: tuple[str, ...] = ()
    token_origins: tuple[int, ...] = ()               # FIRST, ACCEPTED, CORRECTION or BONUS
    log_probs: tuple[float, ...] = ()
    finish_reason: str = ""
    statistics: Mapping[str, Any] | None = None


class Connection:
    """A channel to one server; may be shared by threads, each request being a stream of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=[
            ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),    # another connection's back-off after a restart is not ours
        ])
        self._service = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def generate(self, generation: Generation, timeout_s: float | None = None) -> TokenStream:
        """Send a request; iterate over the answer for its chunks."""
        return self.send(generation.tensors(), timeout_s)

    def send(self, tensors: Mapping[str, np.ndarray], timeout_s: float | None = None) -> TokenStream:
        """Send raw inputs as they are; strings are object arrays of `bytes` or `str`."""
        request = service_pb2.ModelInferRequest(model_name=MODEL)
        for name, values in tensors.items():
            tensor = InferInput(name, list(values.shape), _datatype(values))
            tensor.set_data_from_numpy(values)
            request.inputs.append(tensor._get_tensor())
            request.raw_input_contents.append(tensor._get_content())
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        return TokenStream(self._service.ModelStreamInfer(iter([request]), timeout=timeout_s))

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TokenStream:
    """The answer to one request. Iterating raises RemoteError when the server refuses, fails or goes away."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Chunk]:
        failure: RemoteError | None = None
        try:
            for message in self._call:
                if message.error_message:        # read on: Triton 2.51 never lets go of a request that is cancelled now
                    failure = failure or _remote_error(message.error_message)
                elif message.infer_response.outputs:
                    yield _chunk(message.infer_response)
            if failure is not None:
                raise failure
        except grpc.RpcError as error:
            raise RemoteError(error.code().name, error.details() or "no details") from error
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Tell the server that nobody listens any more; its slot is free after the round in progress."""
        self._call.cancel()


def _remote_error(text: str) -> RemoteError:
    """An error that came as text inside the stream, as errors of a stream do.

    The header `triton_grpc_error`, which asks for gRPC's own status instead, must not be sent: Triton 2.51 dies of it
    (signal 11) when a request is refused while another stream runs.
    """
    code, colon, details = text.partition(": ")
    if colon and code in grpc.StatusCode.__members__:
        return RemoteError(code, details)
    return RemoteError(next((code for words, code in TRITONS_OWN_ERRORS.items() if words in text), "UNKNOWN"), text)


def _vector(value: Any, datatype: str) -> np.ndarray:
    return np.array([value] if np.isscalar(value) else list(value), NUMPY[datatype])


def _datatype(values: np.ndarray) -> str:
    for name, kind in NUMPY.items():
        if values.dtype == kind:
            return name
    return {"int64": "INT64", "float64": "FP64", "uint8": "UINT8"}.get(values.dtype.name, "BYTES")


def _chunk(response: service_pb2.ModelInferResponse) -> Chunk:
    outputs = {
        output.name: _values(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    statistics = _text(outputs, "statistics")
    return Chunk(
        text=_text(outputs, "text_output"),
        token_ids=tuple(int(token) for token in outputs.get("token_ids", ())),
        token_texts=tuple(text.decode() for text in outputs.get("token_texts", ())),
        token_origins=tuple(int(origin) for origin in outputs.get("token_origins", ())),
        log_probs=tuple(float(value) for value in outputs.get("log_probs", ())),
        finish_reason=_text(outputs, "finish_reason"),
        statistics=json.loads(statistics) if statistics else None,
    )


def _values(datatype: str, raw: bytes) -> np.ndarray:
    return deserialize_bytes_tensor(raw) if datatype == TEXT else np.frombuffer(raw, NUMPY[datatype])


def _text(outputs: Mapping[str, np.ndarray], name: str) -> str:
    return b"".join(outputs.get(name, ())).decode()

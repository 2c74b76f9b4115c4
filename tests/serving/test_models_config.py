"""config.pbtxt says what the library says: the same tensors, types and numbers of axes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from dspark.engines.codec import tensor_specs
from dspark.engines.contract import DrafterResult, DrafterStep, TargetResult, TargetStep
from dspark.orchestrator import RequestTensors
from dspark_client.paths import REPOSITORY
from dspark_client.transport import DATATYPES
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

TYPES = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32, "TYPE_BOOL": np.bool_}


def config(model: str) -> ModelConfig:
    source = (REPOSITORY / "model_repository" / model / "config.pbtxt").read_text()
    return text_format.Parse(source, ModelConfig())


def declared(tensors) -> dict[str, tuple[type, int]]:
    from tritonclient.grpc.model_config_pb2 import DataType

    return {tensor.name: (TYPES[DataType.Name(tensor.data_type)], len(tensor.dims)) for tensor in tensors}


@pytest.mark.parametrize(("model", "step", "result"), [
    ("target", TargetStep, TargetResult), ("drafter", DrafterStep, DrafterResult),
])
def test_engine_models_declare_the_contracts_fields(model, step, result):
    found = config(model)
    for tensors, record in ((found.input, step), (found.output, result)):
        assert declared(tensors) == {spec.name: (spec.dtype, len(spec.axes)) for spec in tensor_specs(record)}


def test_the_dspark_model_declares_what_a_request_may_hold():
    found = config("dspark")
    fields = [field.name for field in dataclasses.fields(RequestTensors) if field.name != "parameters"]
    assert [tensor.name for tensor in found.input] and {tensor.name for tensor in found.input} == set(fields)
    assert all(tensor.optional for tensor in found.input)
    assert found.model_transaction_policy.decoupled


def test_the_client_sends_the_types_that_the_model_declares():
    from tritonclient.grpc.model_config_pb2 import DataType

    names = {"STRING": "BYTES"}
    types = {tensor.name: DataType.Name(tensor.data_type).removeprefix("TYPE_") for tensor in config("dspark").input}
    assert {name: names.get(kind, kind) for name, kind in types.items()} == DATATYPES

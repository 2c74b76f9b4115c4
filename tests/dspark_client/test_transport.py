"""What a request sends: only what is set, in the types that the model's config.pbtxt declares."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import numpy as np
from dspark_client.paths import REPOSITORY
from dspark_client.transport import DATATYPES, Generation, Message

TRITON_NAMES = {"TYPE_STRING": "BYTES"}


def test_only_what_is_set_is_sent() -> None:
    assert set(Generation(text_input="Hello", max_tokens=3).tensors()) == {"text_input", "max_tokens", "stream"}


def test_values_become_vectors_of_the_declared_types() -> None:
    tensors = Generation(
        input_ids=(1, 2, 3), temperature=0.5, seed=2**63, stop_words=["a", "b"], return_log_probs=True, top_k=4
    ).tensors()
    found = {name: (values.dtype, values.shape) for name, values in tensors.items()}
    assert found == {
        "input_ids": (np.int32, (3,)), "temperature": (np.float32, (1,)), "seed": (np.uint64, (1,)),
        "stop_words": (np.object_, (2,)), "return_log_probs": (np.bool_, (1,)), "top_k": (np.int32, (1,)),
        "stream": (np.bool_, (1,)),
    }


def test_a_conversation_travels_as_json() -> None:
    asked = Generation(text_input="x").with_messages((Message("system", "Be kind."), Message("user", 'Say "é".')))
    (text,) = asked.tensors()["messages"]
    assert json.loads(text) == [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": 'Say "é".'}
    ]
    assert "text_input" not in asked.tensors()


def test_every_input_of_the_model_can_be_sent_with_its_type() -> None:
    config = (REPOSITORY / "model_repository" / "dspark" / "config.pbtxt").read_text()
    inputs = config[config.index("input [") : config.index("output [")]
    declared = {
        name: TRITON_NAMES.get(kind, kind.removeprefix("TYPE_"))
        for name, kind in re.findall(r'name: "(\w+)"\s+data_type: (\w+)', inputs)
    }
    assert declared == DATATYPES
    assert {field.name for field in fields(Generation)} == set(declared)

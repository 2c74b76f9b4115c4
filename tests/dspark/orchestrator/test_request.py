"""Requests at the border: what is understood, what is filled in, and every way to be refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dspark.errors import InvalidRequestError
from dspark.orchestrator import RequestRules, RequestTensors, parse_request
from hypothesis import given
from hypothesis import strategies as st
from toy_engines import END_OF_TURN, SPECIAL, TARGET_LIMITS, V, read_tokenizer

DTYPES = {
    "input_ids": np.int32, "max_tokens": np.int32, "top_k": np.int32, "stop_token_ids": np.int32,
    "max_draft_tokens": np.int32, "temperature": np.float32, "top_p": np.float32, "min_p": np.float32,
    "repetition_penalty": np.float32, "seed": np.uint64, "stream": np.bool_, "return_log_probs": np.bool_,
    "exclude_input_in_output": np.bool_, "ignore_eos": np.bool_,
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    return RequestRules(read_tokenizer(tmp_path_factory.mktemp("tokenizer")), TARGET_LIMITS, default_max_tokens=64)


def tensors(parameters: str = "{}", **values) -> RequestTensors:
    """Tensors as a client sends them, each a vector."""

    def vector(name, value):
        listed = value if isinstance(value, list) else [value]
        if name in DTYPES:
            return np.array(listed, DTYPES[name])
        return np.array([item.encode() if isinstance(item, str) else item for item in listed], np.object_)

    return RequestTensors(parameters=parameters, **{name: vector(name, value) for name, value in values.items()})


def sampling_parameters(**values) -> str:
    return json.dumps(values)


def test_a_bare_prompt_is_decoded_greedily_with_the_defaults(rules):
    found = parse_request(tensors(text_input="hello"), rules)
    assert found.prompt.tolist() == rules.tokenizer.encode("hello").tolist()
    assert found.prompt.dtype == np.int32
    assert found.sampling.greedy
    assert found.max_tokens == 64
    assert found.stop_tokens == {END_OF_TURN, 0}
    assert not found.stream and not found.return_log_probs and found.echo == "" and found.max_draft_tokens is None


def test_the_default_of_max_tokens_gives_way_to_the_context(rules):
    assert parse_request(tensors(text_input="x" * 190), rules).max_tokens == 10


def test_every_input_is_understood(rules):
    found = parse_request(tensors(
        input_ids=[5, 6, 7], max_tokens=9, stream=True, temperature=0.7, top_k=20, top_p=0.8, min_p=0.1,
        repetition_penalty=1.1, seed=2**64 - 1, stop_words=["a", "bc"], stop_token_ids=[9], ignore_eos=True,
        return_log_probs=True, max_draft_tokens=0, exclude_input_in_output=False,
    ), rules)
    assert found.prompt.tolist() == [5, 6, 7]
    assert (found.max_tokens, found.stream, found.seed) == (9, True, 2**64 - 1)
    assert found.sampling.temperature == pytest.approx(0.7)
    assert (found.sampling.top_k, found.sampling.top_p) == (20, pytest.approx(0.8))
    assert found.sampling.min_p == pytest.approx(0.1) and found.sampling.repetition_penalty == pytest.approx(1.1)
    assert found.stop_strings == ("a", "bc") and found.stop_tokens == {9}
    assert found.return_log_probs and found.max_draft_tokens == 0
    assert found.echo == rules.tokenizer.decode([5, 6, 7])


def test_the_vllm_back_ends_json_says_the_same_with_numbers_or_strings(rules):
    values = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.2, "repetition_penalty": 1.5,
              "seed": 7, "max_draft_tokens": 2}
    direct = parse_request(tensors(text_input="x", **values), rules)
    for form in (values, {name: str(value) for name, value in values.items()}):
        assert parse_request(tensors(text_input="x", sampling_parameters=json.dumps(form)), rules) == direct
        assert parse_request(tensors(text_input="x", parameters=json.dumps(form)), rules) == direct
    vllm = parse_request(tensors(text_input="x", sampling_parameters=sampling_parameters(
        stop=["END"], stop_token_ids=[4], ignore_eos="true", logprobs=0, n=1, top_k=-1, top_p=None,
    )), rules)
    assert vllm.stop_strings == ("END",) and vllm.stop_tokens == {4} and vllm.return_log_probs
    assert vllm.sampling.top_k == 0 and vllm.sampling.greedy


def test_tritons_own_request_parameters_are_not_ours(rules):
    parse_request(tensors(text_input="x", parameters='{"triton_enable_empty_final_response": true}'), rules)


@pytest.mark.parametrize("narrowing", [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_whoever_narrows_the_choice_without_a_temperature_wants_to_sample(rules, narrowing):
    assert parse_request(tensors(text_input="x", **narrowing), rules).sampling.temperature == 1.0
    assert parse_request(tensors(text_input="x", temperature=0.0, **narrowing), rules).sampling.greedy


def test_a_request_without_seed_is_given_one_of_its_own(rules):
    seeds = {parse_request(tensors(text_input="x"), rules).seed for _ in range(20)}
    assert len(seeds) == 20 and max(seeds) < 2**53


def test_a_chat_is_rendered_with_the_models_template(rules):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hé"}]}]
    found = parse_request(tensors(messages=json.dumps(chat), exclude_input_in_output=False), rules)
    assert found.echo == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHé<|im_end|>\n<|im_start|>assistant\n"
    )
    assert found.prompt[0] == SPECIAL.index("<|im_start|>")


REFUSED = [
    ({"text_input": ""}, "text_input is empty"),
    ({"input_ids": []}, "input_ids is empty"),
    ({}, "exactly one of text_input, input_ids, messages is expected, not none"),
    ({"text_input": "x", "input_ids": [1]}, "text_input and input_ids"),
    ({"text_input": "x" * 201}, "leaves no room in the context of 200"),
    ({"text_input": "x" * 200}, "leaves no room"),
    ({"text_input": "x" * 1_000_000}, "cannot fit"),
    ({"messages": json.dumps([{"role": "user", "content": "x" * 1_000_000}])}, "cannot fit"),
    ({"text_input": "x" * 100, "max_tokens": 101}, "at most 100 fit"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": -3}, "max_tokens is -3"),
    ({"temperature": -0.1}, "temperature is -0.1"),
    ({"temperature": float("nan")}, "temperature is nan; a finite"),
    ({"temperature": float("inf")}, "temperature is inf"),
    ({"top_p": 0.0}, "top_p is 0.0"),
    ({"top_p": 2.0}, "top_p is 2.0"),
    ({"top_p": float("nan")}, "top_p is nan"),
    ({"top_k": -2}, "top_k is -2"),
    ({"min_p": 1.5}, "min_p is 1.5"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ({"max_draft_tokens": -1}, "max_draft_tokens is -1"),
    ({"input_ids": [1, V]}, f"input_ids: {V} is no token"),
    ({"input_ids": [-1]}, "input_ids: -1 is no token"),
    ({"stop_token_ids": [V]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 65}, "at most 64"),
    ({"stop_words": ["s"] * 1000}, "stop_words holds 1000 strings; at most 16"),
    ({"stop_words": [""]}, "0 characters"),
    ({"stop_words": ["s" * 129]}, "129 characters"),
    ({"text_input": b"ab\xff"}, "text_input is not valid UTF-8: invalid start byte at byte 2"),
    ({"stop_words": [b"\xe2\x82"]}, "stop_words is not valid UTF-8"),
    ({"messages": "[{]"}, "messages is not JSON"),
    ({"messages": "[" * 100_000}, "messages is not JSON"),
    ({"messages": "[]"}, "holds no message"),
    ({"messages": '{"role": "user"}'}, "holds no message"),
    ({"messages": '[{"content": "x"}]'}, r"messages\[0\] has no role"),
    ({"messages": '[{"role": "user", "content": 3}]'}, r"messages\[0\]: content must be text"),
    ({"messages": '[{"role": "user", "content": [{"type": "image"}]}]'}, "a content part"),
    ({"messages": '[{"role": "user", "content": "x", "tool_calls": []}]'}, "'tool_calls' is not understood"),
    ({"messages": r'[{"role": "user", "content": "\ud83d"}]'}, "half of a surrogate pair"),
    ({"sampling_parameters": '{"temprature": 1}'}, "'temprature' is not known"),
    ({"sampling_parameters": '{"text_input": "y"}'}, "'text_input' is not known"),
    ({"sampling_parameters": '{"max_tokens": 1'}, "sampling_parameters is not JSON"),
    ({"sampling_parameters": "[1]"}, "a JSON object"),
    ({"sampling_parameters": '{"max_tokens": "many"}'}, "max_tokens is 'many'; a whole number"),
    ({"sampling_parameters": '{"max_tokens": 1.5}'}, "max_tokens is 1.5; a whole number"),
    ({"sampling_parameters": '{"max_tokens": true}'}, "max_tokens is True"),
    ({"sampling_parameters": '{"temperature": NaN}'}, "temperature is nan"),
    ({"sampling_parameters": '{"temperature": 1e400}'}, "temperature is inf"),
    ({"sampling_parameters": '{"temperature": "hot"}'}, "temperature is 'hot'; a number"),
    ({"sampling_parameters": '{"temperature": 0.5}', "temperature": 0.5}, "temperature is given twice"),
    ({"sampling_parameters": '{"stop": ["a"], "stop_words": ["b"]}'}, "stop_words is given twice"),
    ({"sampling_parameters": '{"n": 2}'}, "n must be 1"),
    ({"sampling_parameters": '{"logprobs": 5}'}, "logprobs is 5"),
    ({"sampling_parameters": '{"seed": -1}'}, "seed is -1"),
    ({"sampling_parameters": '{"seed": 1e3}'}, "seed is 1000.0; a whole number"),
    ({"sampling_parameters": '{"ignore_eos": "perhaps"}'}, "ignore_eos is 'perhaps'; true or false"),
    ({"sampling_parameters": '{"stop": [1]}'}, "stop_words is 1; text"),
    ({"parameters": '{"frequency_penalty": 1}'}, "'frequency_penalty' is not known"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_bad_input_is_refused_with_what_was_wrong(rules, values, message):
    prompt = {} if {"text_input", "input_ids", "messages"} & values.keys() or not values else {"text_input": "x"}
    with pytest.raises(InvalidRequestError, match=message):
        parse_request(tensors(**prompt, **values), rules)


def test_a_wrong_shape_is_refused(rules):
    for array in (np.array([[1]], np.int32), np.array(1, np.int32), np.array([1, 2], np.int32), np.empty(0, np.int32)):
        with pytest.raises(InvalidRequestError, match=r"max_tokens: shape .* where \[1\] is expected"):
            parse_request(RequestTensors(text_input=np.array([b"x"], np.object_), max_tokens=array), rules)
    with pytest.raises(InvalidRequestError, match=r"input_ids: shape \[1, 2\] where \[n\]"):
        parse_request(RequestTensors(input_ids=np.array([[1, 2]], np.int32)), rules)


def test_a_wrong_type_is_refused(rules):
    with pytest.raises(InvalidRequestError, match=r"max_tokens is 1\.5; a whole number"):
        parse_request(RequestTensors(text_input=np.array([b"x"], np.object_), max_tokens=np.array([1.5])), rules)
    with pytest.raises(InvalidRequestError, match="text_input is 3; text"):
        parse_request(RequestTensors(text_input=np.array([3])), rules)


@given(source=st.text(max_size=40) | st.dictionaries(
    st.sampled_from(["max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logprobs", "n", "x"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.lists(st.text(max_size=3) | st.integers(), max_size=3),
).map(json.dumps))
def test_no_json_breaks_the_parser(rules, source):
    try:
        found = parse_request(tensors(text_input="x", sampling_parameters=source), rules)
    except InvalidRequestError:
        return
    assert 1 <= found.max_tokens <= 199
    assert np.isfinite(found.sampling.temperature)

"""p^t is what Hugging Face makes of the same logits and settings, with ties decided."""

import numpy as np
import pytest
from dspark.engines.contract import SamplingArrays
from dspark.errors import EngineError
from dspark.verification import SamplingSettings, target_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_rounds import reference_probabilities

NO_HISTORY = np.empty(0, np.int32)
SETTINGS = {
    "temperature": SamplingSettings(temperature=0.6),
    "hot": SamplingSettings(temperature=1.7),
    "top_k": SamplingSettings(top_k=20),
    "top_k_beyond_the_vocabulary": SamplingSettings(top_k=100_000),
    "top_p": SamplingSettings(top_p=0.9),
    "tiny_top_p": SamplingSettings(top_p=1e-4),
    "nearly_all_of_top_p": SamplingSettings(top_p=0.9995),
    "min_p": SamplingSettings(min_p=0.05),
    "repetition_penalty": SamplingSettings(repetition_penalty=1.3),
    "repetition_reward": SamplingSettings(repetition_penalty=0.8),
    "qwen": SamplingSettings(temperature=0.7, top_k=20, top_p=0.8),
    "everything": SamplingSettings(temperature=1.3, top_k=200, top_p=0.95, min_p=0.02, repetition_penalty=1.2),
    "top_p_and_min_p": SamplingSettings(temperature=0.9, top_p=0.7, min_p=0.1),
}


def dense(logits, wanted, history=NO_HISTORY):
    distribution = target_distribution(logits, wanted, history)
    assert (np.diff(distribution.ids) > 0).all()
    return np.bincount(distribution.ids, distribution.probs, minlength=len(logits))


@pytest.mark.parametrize("wanted", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize(("vocabulary", "spread"), [(50, 2.0), (5_000, 1.0), (5_000, 4.0)])
def test_it_agrees_with_the_logits_processors_of_transformers(wanted, vocabulary, spread):
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(vocabulary)
    chain = [
        processors.RepetitionPenaltyLogitsProcessor(wanted.repetition_penalty),
        processors.TemperatureLogitsWarper(wanted.temperature),
        *([processors.TopKLogitsWarper(wanted.top_k)] if wanted.top_k else []),
        processors.TopPLogitsWarper(wanted.top_p),
        processors.MinPLogitsWarper(wanted.min_p),
    ]
    for _ in range(3):
        logits = (spread * rng.standard_normal(vocabulary)).astype(np.float32)
        history = rng.integers(0, vocabulary, 30).astype(np.int32)
        scores = torch.from_numpy(logits.copy())[None]
        for processor in chain:
            scores = processor(torch.from_numpy(history.astype(np.int64))[None], scores)
        theirs = scores[0].double().softmax(-1).numpy()
        ours = dense(logits, wanted, history)
        np.testing.assert_array_equal(ours > 0, theirs > 0)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.sampled_from([1, 2, 7, 65, 3_000]),
    levels=st.sampled_from([1, 2, 5, 40]),
    top_k=st.sampled_from([0, 1, 2, 50, 64]),
    top_p=st.sampled_from([1.0, 0.999, 0.61, 0.3, 1e-3]),
    min_p=st.sampled_from([0.0, 0.07, 1.0]),
)
def test_among_equal_logits_the_lowest_ids_are_kept(seed, vocabulary, levels, top_k, top_p, min_p):
    rng = np.random.default_rng(seed)
    logits = (rng.integers(0, levels, vocabulary) * np.float32(0.13)).astype(np.float32)
    wanted = SamplingSettings(temperature=0.5, top_k=top_k, top_p=top_p, min_p=min_p)
    np.testing.assert_allclose(dense(logits, wanted), reference_probabilities(logits, wanted, ()), rtol=1e-5, atol=1e-9)


def test_greedy_is_certain_of_the_lowest_id_among_the_largest_logits():
    logits = np.array([1, 3, 3, 0], np.float32)
    assert dense(logits, SamplingSettings(temperature=0.0, top_k=3, top_p=0.5)).tolist() == [0, 1, 0, 0]


def test_a_repeated_token_is_penalised_once_and_the_logits_are_left_alone():
    logits = np.array([2.0, -2.0, 1.0], np.float32)
    probs = dense(logits, SamplingSettings(repetition_penalty=2.0), np.array([0, 1, 0, 0], np.int32))
    np.testing.assert_allclose(probs, np.exp([1, -4, 1]) / np.exp([1, -4, 1]).sum(), rtol=1e-6)
    assert logits.tolist() == [2.0, -2.0, 1.0]


def test_masked_tokens_never_appear():
    logits = np.full(3_000, -np.inf, np.float32)
    logits[[5, 70, 2_999]] = [1.0, 2.0, 0.0]
    for wanted in SETTINGS.values():
        distribution = target_distribution(logits, wanted, NO_HISTORY)
        assert set(distribution.ids[distribution.probs > 0]) <= {5, 70, 2_999}


def test_a_temperature_next_to_zero_is_nearly_greedy():
    logits = np.random.default_rng(0).standard_normal(3_000).astype(np.float32)
    for temperature in (1e-6, 1e-38):
        assert dense(logits, SamplingSettings(temperature=temperature))[logits.argmax()] == pytest.approx(1.0)


@pytest.mark.parametrize("fault", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_engine_error(fault, temperature):
    logits = np.zeros(10, np.float32)
    logits[3] = fault
    with pytest.raises(EngineError, match="not finite"):
        target_distribution(logits, SamplingSettings(temperature=temperature), NO_HISTORY)


def test_a_row_of_the_steps_arrays_becomes_one_requests_settings():
    arrays = SamplingArrays(
        temperature=np.array([0, 0.5], np.float32),
        top_k=np.array([0, 7], np.int32),
        top_p=np.array([1, 0.25], np.float32),
        min_p=np.array([0, 0.125], np.float32),
        repetition_penalty=np.array([1, 1.5], np.float32),
    )
    assert SamplingSettings.row(arrays, 0) == SamplingSettings(temperature=0.0)
    assert SamplingSettings.row(arrays, 0).greedy
    assert SamplingSettings.row(arrays, 1) == SamplingSettings(0.5, 7, 0.25, 0.125, 1.5)

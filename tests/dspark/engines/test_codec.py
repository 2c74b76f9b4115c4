"""Contract records as named arrays."""

import numpy as np
import pytest
from dspark.engines.codec import decode, encode, tensor_specs
from dspark.engines.contract import DrafterResult, DrafterStep, SamplingArrays, TargetResult, TargetStep
from dspark.errors import EngineError

R, T, D, K, A, F, GAMMA, WIDTH = 3, 11, 5, 4, 7, 2, 6, 8
LENGTHS = {"R": R, "T": T, "D": D, "K": K, "A": A, "F": F, "gamma": GAMMA, "gamma+1": GAMMA + 1, "feature_size": WIDTH}
RECORDS = (TargetStep, TargetResult, DrafterStep, DrafterResult)


def arrays_of(cls, **lengths):
    random = np.random.default_rng(0)
    sizes = LENGTHS | lengths
    return {
        spec.name: (random.random([sizes[axis] for axis in spec.axes]) * 100).astype(spec.dtype)
        for spec in tensor_specs(cls)
    }


@pytest.mark.parametrize("cls", RECORDS)
def test_a_record_survives_the_way_through_arrays(cls):
    arrays = arrays_of(cls)
    again = encode(decode(cls, arrays))
    assert list(again) == [spec.name for spec in tensor_specs(cls)]
    assert all(np.array_equal(again[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("cls", RECORDS)
def test_empty_axes_are_fine(cls):
    decode(cls, arrays_of(cls, R=0, T=0, D=0, A=0, F=0))


def test_sampling_settings_are_flattened_with_a_prefix():
    step = decode(TargetStep, arrays_of(TargetStep))
    assert isinstance(step.sampling, SamplingArrays)
    assert np.array_equal(encode(step)["sampling_top_k"], step.sampling.top_k)


def test_arrays_leave_contiguous():
    arrays = arrays_of(DrafterStep)
    arrays["context"] = np.asfortranarray(arrays["context"])
    assert encode(decode(DrafterStep, arrays))["context"].flags.c_contiguous


@pytest.mark.parametrize("cls", RECORDS)
def test_every_missing_array_is_named(cls):
    for name in arrays_of(cls):
        arrays = arrays_of(cls)
        del arrays[name]
        with pytest.raises(EngineError, match=f"{cls.__name__}: {name} is missing"):
            decode(cls, arrays)


@pytest.mark.parametrize("cls", RECORDS)
def test_every_wrong_type_and_rank_is_named(cls):
    for name, array in arrays_of(cls).items():
        with pytest.raises(EngineError, match=f"{name} is float64, expected"):
            decode(cls, arrays_of(cls) | {name: array.astype(np.float64)})
        with pytest.raises(EngineError, match=f"{name} has shape"):
            decode(cls, arrays_of(cls) | {name: array[None]})


def test_axes_that_disagree_are_named():
    arrays = arrays_of(TargetStep) | {"positions": np.zeros(R + 1, np.int32)}
    with pytest.raises(EngineError, match=r"positions has R = 4, but slots has R = 3"):
        decode(TargetStep, arrays)


def test_an_unknown_array_is_refused():
    with pytest.raises(EngineError, match="no array 'colour'"):
        decode(TargetResult, arrays_of(TargetResult) | {"colour": np.zeros(1)})


def test_a_record_of_wrong_arrays_cannot_be_encoded():
    record = decode(DrafterResult, arrays_of(DrafterResult))
    with pytest.raises(EngineError, match="tokens is int64"):
        encode(DrafterResult(record.tokens.astype(np.int64), *list(vars(record).values())[1:]))

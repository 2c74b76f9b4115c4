"""Survival from confidence, its calibration record, and the policies that need no curve."""

import json

import numpy as np
import pytest
from dspark.errors import ConfigurationError
from dspark.scheduling import Calibration, make_policy, survival
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

GAMMA = 4
POLICIES = ["none", "full", "fixed:0", "fixed:2", "threshold:0", "threshold:0.35", "threshold:0.9", "threshold:1"]
logits_of_a_batch = arrays(np.float32, (3, GAMMA), elements=st.floats(-9, 9, width=32))
limits_of_a_batch = arrays(np.int32, 3, elements=st.integers(0, GAMMA + 2))
properties = settings(max_examples=60, deadline=None, derandomize=True)


def logit(p):
    return np.log(p / (1 - np.asarray(p)))


def test_survival_is_the_cumulative_product_of_the_confidences():
    confidence = np.array([[0.9, 0.5, 0.2], [0.3, 0.99, 0.99]])
    np.testing.assert_allclose(survival(logit(confidence).astype(np.float32)), confidence.cumprod(axis=1), rtol=1e-6)


def test_temperatures_divide_the_logits_position_by_position():
    logits = np.array([[2.0, -1.0, 4.0]], np.float32)
    expected = (1 / (1 + np.exp(-logits / [2.0, 0.5, 4.0]))).cumprod(axis=1)
    np.testing.assert_allclose(survival(logits, np.array([2.0, 0.5, 4.0])), expected, rtol=1e-6)


def test_a_drafter_without_confidence_head_survives_and_is_never_cut_by_a_threshold():
    a = survival(np.full((2, GAMMA), np.nan, np.float32), np.full(GAMMA, 2.0))
    assert (a == 1.0).all()
    assert make_policy("threshold:0.99", GAMMA).rule.lengths(a, np.array([4, 3], np.int32)).tolist() == [4, 3]


def test_overwhelming_logits_are_certainties():
    assert survival(np.array([[1e4, np.inf, -1e4]], np.float32)).tolist() == [[1.0, 1.0, 0.0]]


@properties
@given(logits_of_a_batch)
def test_survival_never_rises_along_a_block(logits):
    assert (np.diff(survival(logits), axis=1) <= 0).all()


@properties
@given(logits_of_a_batch, limits_of_a_batch, st.sampled_from(POLICIES))
def test_no_policy_exceeds_the_limits_or_the_block(logits, limits, policy):
    lengths = make_policy(policy, GAMMA).rule.lengths(survival(logits), limits)
    assert lengths.dtype == np.int32
    assert ((lengths >= 0) & (lengths <= np.minimum(limits, GAMMA))).all()


@properties
@given(logits_of_a_batch, st.floats(0.05, 0.95))
def test_a_threshold_stops_at_the_first_conditional_confidence_below_it(logits, threshold):
    confidence = 1 / (1 + np.exp(-logits.astype(np.float64)))
    below = confidence < float(f"{threshold:.3f}")
    expected = np.where(below.any(axis=1), below.argmax(axis=1), GAMMA)
    rule = make_policy(f"threshold:{threshold:.3f}", GAMMA).rule
    assert (rule.lengths(survival(logits), np.full(3, GAMMA, np.int32)) == expected).all()


@properties
@given(logits_of_a_batch, logits_of_a_batch, st.integers(1, GAMMA), st.sampled_from(POLICIES))
def test_whether_a_draft_is_verified_does_not_depend_on_later_confidences(logits, others, known, policy):
    """What keeps a static policy lossless: c_{j+1}.. carry x_j, so they may not decide about it."""
    rule, limits = make_policy(policy, GAMMA).rule, np.full(3, GAMMA, np.int32)
    changed = np.concatenate([logits[:, :known], others[:, known:]], axis=1)
    before, after = rule.lengths(survival(logits), limits), rule.lengths(survival(changed), limits)
    assert (np.minimum(before, known) == np.minimum(after, known)).all()


def test_the_threshold_bounds_the_conditional_confidence_not_the_survival():
    a = survival(logit([[0.7, 0.7, 0.7, 0.7]]).astype(np.float32))
    assert a[0, -1] < 0.6
    assert make_policy("threshold:0.6", GAMMA).rule.lengths(a, np.array([4], np.int32)) == [4]


def test_only_the_policy_none_does_without_drafting():
    assert [policy for policy in POLICIES if not make_policy(policy, GAMMA).uses_drafter] == ["none"]
    assert not make_policy("none+lookup", GAMMA).uses_drafter and make_policy("none+lookup", GAMMA).uses_lookup


@pytest.mark.parametrize(
    "policy",
    ["", "fast", "fixed", "fixed:", "fixed:-1", "fixed:2.5", "threshold:", "threshold:nan", "threshold:-0.1"],
)
def test_an_unknown_policy_is_refused_with_the_choices(policy):
    with pytest.raises(ConfigurationError, match=r"choose none, full, fixed:N, threshold:C or adaptive"):
        make_policy(policy, GAMMA)


@pytest.mark.parametrize(("policy", "range_"), [("fixed:5", "fixed:0 to fixed:4"), ("threshold:1.01", "from 0 to 1")])
def test_a_policy_out_of_range_is_refused_with_the_range(policy, range_):
    with pytest.raises(ConfigurationError, match=range_):
        make_policy(policy, GAMMA)


def test_an_unknown_rule_of_the_adaptive_policy_is_refused():
    with pytest.raises(ConfigurationError, match="marginal, stale, causal"):
        make_policy("adaptive:clever", GAMMA)


def test_calibration_is_read_from_the_folder_and_is_optional(tmp_path):
    assert Calibration.read(tmp_path, 2) is None
    positions = [{"temperature": 1.5, "ece_before": 0.06, "ece_after": 0.01, "auc": 0.8}, {"temperature": 2}]
    (tmp_path / "calibration.json").write_text(json.dumps({"positions": positions, "data": "held-out"}))
    calibration = Calibration.read(tmp_path, 2)
    assert calibration is not None
    assert calibration.temperatures.tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read"),
        ("[1, 2]", "cannot be read"),
        ('{"positions": 3}', "cannot be read"),
        ('{"positions": [{"ece_after": 0.1}, {}]}', "cannot be read"),
        ('{"positions": [{"temperature": 1}]}', "is of 1 positions, the drafter has 2"),
        ('{"positions": [{"temperature": 1}, {"temperature": 0}]}', "finite and positive"),
        ('{"positions": [{"temperature": 1}, {"temperature": NaN}]}', "finite and positive"),
    ],
)
def test_a_calibration_that_does_not_fit_is_refused_naming_the_file(tmp_path, text, complaint):
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(ConfigurationError, match=complaint) as refusal:
        Calibration.read(tmp_path, 2)
    assert "calibration.json" in str(refusal.value)

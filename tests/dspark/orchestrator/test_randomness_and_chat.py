"""Randomness of a request, and templates run in their sandbox."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.errors import ConfigurationError, InvalidRequestError
from dspark.orchestrator import ChatTemplate, Message, Purpose, RequestRandomness
from scipy.stats import kstest


def test_numbers_depend_on_seed_position_and_purpose_alone():
    one, other = RequestRandomness(5), RequestRandomness(5)
    other.uniforms(3, Purpose.DRAFT, 5)
    other.uniforms(900, Purpose.VERIFY, 3)
    drawn = one.uniforms(17, Purpose.VERIFY, 8)
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn, other.uniforms(17, Purpose.VERIFY, 8))
    np.testing.assert_array_equal(drawn[:5], one.uniforms(17, Purpose.VERIFY, 5))
    for seed, position, purpose in (
        (5, 17, Purpose.DRAFT), (5, 18, Purpose.VERIFY), (6, 17, Purpose.VERIFY), (5 + 2**40, 17, Purpose.VERIFY),
    ):
        assert not np.isin(drawn, RequestRandomness(seed).uniforms(position, purpose, 8)).any()


def test_numbers_are_uniform_and_below_one():
    drawn = np.concatenate([
        RequestRandomness(seed).uniforms(position, purpose, 8)
        for seed in (0, 1, 2**64 - 1) for position in range(400) for purpose in Purpose
    ])
    assert drawn.min() >= 0 and drawn.max() < 1
    assert kstest(drawn, "uniform").pvalue > 1e-3


def test_the_stream_of_a_seed_stays_the_same_from_release_to_release():
    np.testing.assert_array_equal(
        RequestRandomness(42).uniforms(7, Purpose.DRAFT, 3),
        (np.random.Philox(key=42, counter=[0, 7, 1, 0]).random_raw(3) >> np.uint64(40)).astype(np.float32) / 2**24,
    )


def test_templates_see_the_special_tokens_and_may_refuse():
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.role | tojson }}:{{ m.content }}{{ eos_token }}{% endfor %}", "<s>", "</s>",
    )
    assert template.render([Message("user", "hé")]) == '<s>"user":hé</s>'
    with pytest.raises(InvalidRequestError, match="no tools"):
        template.render([Message("tool", "x")])


def test_a_template_cannot_reach_outside_its_sandbox():
    template = ChatTemplate("{{ messages.__class__.__mro__ }}", "", "")
    with pytest.raises(InvalidRequestError, match="unsafe"):
        template.render([Message("user", "x")])


def test_a_template_with_wrong_syntax_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match=r"chat_template\.jinja"):
        ChatTemplate("{% for %}", "", "")

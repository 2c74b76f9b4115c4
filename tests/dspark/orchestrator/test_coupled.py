"""Coupled verification through the round loop: a seed's tokens depend on nothing but prompt and settings."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from dspark.orchestrator.randomness import RequestRandomness
from dspark.verification import SamplingSettings, coupled_choice, target_distribution
from test_round_loop import LOOPING, Bench
from toy_engines import K, Table, plain_decoding, read_tokenizer, request

PLAIN = SamplingSettings(temperature=1.0)
EVERYTHING = SamplingSettings(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
POLICIES = (
    "none", "full", "fixed:2", "threshold:0.6", "none+lookup", "full+lookup", "adaptive", "adaptive+lookup",
    "adaptive:causal", "adaptive:global", "adaptive:global+lookup",
)
PROMPTS = ("a", "once upon a time", LOOPING)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return read_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def asked(sampling=PLAIN, **changes):
    return [
        request(prompt, max_tokens=25, seed=seed, sampling=sampling, **changes)
        for seed, prompt in enumerate(PROMPTS, 3)
    ]


def coupled(tokenizer, policy="full", **options):
    return Bench(tokenizer, policy, verification="coupled", **options)


def by_hand(one):
    """A token at a time, by the noise of its position."""
    table, tokens, output = Table(), one.prompt.tolist(), []
    noise = RequestRandomness(one.seed).noise_keys(0, len(tokens) + one.max_tokens)
    while len(output) < one.max_tokens and not (output and output[-1] in one.stop_tokens):
        law = target_distribution(table.logits(tokens), one.sampling, np.array(tokens, np.int32))
        output.append(coupled_choice(law, int(noise[len(tokens)])))
        tokens.append(output[-1])
    return output


@pytest.mark.parametrize("sampling", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_tokens_of_a_seed_are_the_same_under_every_policy_and_drafter(tokenizer, policy, sampling):
    expected = [by_hand(one) for one in asked(sampling)]
    for noise in (0.0, 0.5, 8.0):
        listeners = coupled(tokenizer, policy, noise=noise).run(*asked(sampling))
        assert [listener.tokens for listener in listeners] == expected


@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_tokens_of_a_seed_do_not_depend_on_how_much_may_be_drafted(tokenizer, most):
    listeners = coupled(tokenizer).run(*asked(max_draft_tokens=most))
    assert [listener.tokens for listener in listeners] == [by_hand(one) for one in asked()]


@pytest.mark.parametrize("policy", ["full", "adaptive:global+lookup"])
def test_the_tokens_of_a_seed_are_the_same_alone_and_among_neighbours(tokenizer, policy):
    one = asked()[1]
    bench = coupled(tokenizer, policy, prefill_chunk=5)
    others = [bench.submit(request("y" * n, max_tokens=40 - 3 * n, seed=n, sampling=PLAIN)) for n in range(1, 12)]
    for _ in range(3):
        bench.loop.round()
    among = bench.submit(one)
    bench.finish(among, *others)
    assert among.tokens == by_hand(one)


def test_a_diagnosis_changes_no_token_either(tokenizer):
    listeners = coupled(tokenizer, "fixed:1", diagnose=True).run(*asked())
    assert [listener.tokens for listener in listeners] == [by_hand(one) for one in asked()]


def test_another_seed_and_another_rule_give_other_tokens(tokenizer):
    one = asked()[1]
    [tokens] = [listener.tokens for listener in coupled(tokenizer).run(one)]
    [other] = [listener.tokens for listener in coupled(tokenizer).run(dataclasses.replace(one, seed=one.seed + 1))]
    [standard] = [listener.tokens for listener in Bench(tokenizer).run(one)]
    assert tokens != other and tokens != standard


def test_every_draft_is_accepted_where_the_drafter_has_the_targets_distribution(tokenizer):
    """The toy drafter keeps its K likeliest candidates, and so does this request's target."""
    one = request("a story", max_tokens=101, seed=5, sampling=SamplingSettings(temperature=0.9, top_k=K))
    bench = coupled(tokenizer, noise=0.0)
    bench.submit(one)
    judged = []
    while bench.loop.active or not judged:
        report = bench.loop.round()
        judged.append((report.verified, report.accepted))
    verified, accepted = np.sum(judged, axis=0)
    assert verified == accepted > 0


def test_greedy_requests_are_as_ever(tokenizer):
    requests = [request(prompt, max_tokens=25) for prompt in PROMPTS]
    listeners = coupled(tokenizer, "adaptive:global+lookup").run(*requests)
    assert [listener.tokens for listener in listeners] == [plain_decoding(one) for one in requests]


def test_steps_say_which_rule_holds(tokenizer):
    for verification in ("standard", "coupled"):
        bench = Bench(tokenizer, verification=verification)
        bench.run(*asked())
        for step in (*bench.target.steps, *bench.drafter.steps):
            assert step.coupled.tolist() == [verification == "coupled"] * len(step.slots)
            assert step.noise_keys.any() == (verification == "coupled" and len(step.slots) > 0)

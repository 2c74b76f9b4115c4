"""Whole sequences through the round loop, on toy engines that refuse any step that breaks the contract."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from dspark.errors import CancelledRequestError, EngineError, InvalidRequestError, OverloadedError
from dspark.orchestrator import FinishReason, Orchestrator, Origin
from dspark.scheduling import Plan, make_policy
from dspark.scheduling.length_rules import FixedLength
from dspark.settings import ServingSettings
from dspark.verification import SamplingSettings
from toy_engines import (
    DRAFTER_LIMITS,
    GAMMA,
    SPECIAL,
    TARGET_LIMITS,
    Listener,
    engines,
    plain_decoding,
    read_tokenizer,
    request,
)

STATIC = ("none", "full", "fixed:2", "threshold:0.6", "none+lookup", "full+lookup")
LEARNING = ("threshold:0.6+lookup", "adaptive", "adaptive+lookup", "adaptive:causal+lookup", "adaptive:stale+lookup")
SAMPLED = SamplingSettings(temperature=1.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return read_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Costs:
    """A step's time grows with its tokens; a block costs a fifth of a plain step."""

    def target_seconds(self, sequences, tokens, context):
        return 10.0 + 0.5 * tokens

    def drafter_seconds(self, sequences):
        return 2.0


COSTS = Costs()
LIKELY = list(range(len(SPECIAL) + 60, len(SPECIAL) + 90))
LOOPING = [token for first in LIKELY for token in (5, 6, first, LIKELY[first % 7])] + [5, 6]


class Bench:
    """An orchestrator whose rounds the test runs itself."""

    def __init__(
        self, tokenizer, policy="full", noise=0.5, prefill_chunk=8, max_slots=8, max_queue=64,
        costs=COSTS, diagnose=False, verification="standard", **limits,
    ):
        self.target, self.drafter, made = engines(noise, **limits)
        settings = ServingSettings(
            "", policy, max_queue, max_slots, prefill_chunk, diagnose=diagnose, verification=verification
        )
        self.orchestrator = Orchestrator(made, tokenizer, make_policy(policy, GAMMA, costs), settings)
        self.loop = self.orchestrator.loop

    def submit(self, one):
        listener = Listener()
        self.orchestrator.submit(one, listener)
        return listener

    def run(self, *requests):
        """Submit all at once and run rounds until every one is over."""
        listeners = [self.submit(one) for one in requests]
        self.finish(*listeners)
        return listeners

    def finish(self, *listeners):
        for _ in range(2000):
            if all(listener.over for listener in listeners):
                return
            self.loop.round()
        raise AssertionError("the sequences do not end")

    @property
    def free_slots(self):
        report = self.loop.round()
        return report.active == 0 and report.kv_blocks_used == 0


@pytest.mark.parametrize("policy", STATIC + LEARNING)
@pytest.mark.parametrize("noise", [0.0, 0.5, 8.0])
def test_greedy_output_is_that_of_plain_decoding_whatever_the_policy_and_the_drafter(tokenizer, policy, noise):
    longer = "a prompt that is longer than one chunk and the window " * 2
    prompts = ["a", "once upon a time", "x" * 12, "abcabcabcab", longer]
    requests = [request(prompt, max_tokens=25) for prompt in prompts]
    listeners = Bench(tokenizer, policy, noise).run(*requests)
    assert [listener.tokens for listener in listeners] == [plain_decoding(one) for one in requests]


@pytest.mark.parametrize("policy", STATIC)
def test_a_sampled_stream_does_not_depend_on_its_neighbours(tokenizer, policy):
    one = request("a story", max_tokens=30, seed=7, sampling=SAMPLED)
    [alone] = Bench(tokenizer, policy).run(one)
    bench = Bench(tokenizer, policy, prefill_chunk=5)
    others = [bench.submit(request("y" * n, max_tokens=40 - 3 * n, seed=n, sampling=SAMPLED)) for n in range(1, 12)]
    for _ in range(3):
        bench.loop.round()
    among = bench.submit(one)
    bench.finish(among, *others)
    assert among.tokens == alone.tokens
    assert among.text == alone.text


def test_another_seed_gives_another_stream(tokenizer):
    streams = [Bench(tokenizer).run(request(seed=seed, sampling=SAMPLED))[0].tokens for seed in (1, 2)]
    assert streams[0] != streams[1]


@pytest.mark.parametrize("policy", ("full", "full+lookup", "adaptive+lookup", "adaptive:causal"))
def test_sampled_output_has_the_law_of_plain_sampling(tokenizer, policy):
    """Second token at temperature 1 over many seeds, against the table's own probabilities (chi-square, 1e-3).

    Whatever the first token is, it followed the same two before: so lookup always has something to draft.
    """
    from scipy.stats import chisquare
    from toy_engines import Table

    def softmax(logits):
        weights = np.exp(logits - logits.max(), dtype=np.float64)
        return weights / weights.sum()

    bench = Bench(tokenizer, policy, noise=2.0, prefill_chunk=200)
    requests = [request(LOOPING, max_tokens=4, seed=seed, sampling=SAMPLED) for seed in range(1500)]
    bench.orchestrator._admission._capacity = dataclasses.replace(
        bench.orchestrator._admission._capacity, max_queue=len(requests)
    )
    second = [listener.tokens[1] for listener in bench.run(*requests)]
    prompt, table = requests[0].prompt.tolist(), Table()
    first = softmax(table.logits(prompt))
    law = sum(p * softmax(table.logits([prompt[-1], token])) for token, p in enumerate(first) if p > 1e-9)
    likely = np.flatnonzero(law > 5 / len(second))
    seen = np.bincount(second, minlength=len(law))
    observed = [*seen[likely], len(second) - seen[likely].sum()]
    expected = np.array([*law[likely], 1 - law[likely].sum()]) * len(second)
    assert chisquare(observed, expected * sum(observed) / expected.sum()).pvalue > 1e-3


def test_origins_tell_accepted_drafts_from_the_targets_own_tokens(tokenizer):
    [perfect] = Bench(tokenizer, "full", noise=0.0).run(request(max_tokens=11))
    assert perfect.origins == [Origin.FIRST, *[*[Origin.ACCEPTED] * 4, Origin.BONUS] * 2]
    [hopeless] = Bench(tokenizer, "full", noise=50.0).run(request(max_tokens=5))
    assert hopeless.origins == [Origin.FIRST, *[Origin.CORRECTION] * 3, Origin.BONUS]      # no room to draft at last
    [plain] = Bench(tokenizer, "none").run(request(max_tokens=3))
    assert plain.origins == [Origin.FIRST, Origin.BONUS, Origin.BONUS]


def test_the_statistics_add_up(tokenizer):
    bench = Bench(tokenizer, "full")
    [listener] = bench.run(request(max_tokens=30, seed=5))
    told = json.loads(listener.chunks[-1].statistics)
    assert told["seed"] == 5
    assert told["prompt_tokens"] == 16
    assert told["output_tokens"] == 30 == len(listener.tokens)
    assert told["accepted"] == sum(told["accepted_by_position"]) == listener.origins.count(Origin.ACCEPTED)
    assert told["verified"] == sum(told["verified_by_position"])
    assert told["output_tokens"] == 1 + told["rounds"] + told["accepted"]
    assert told["tau"] == pytest.approx(1 + told["accepted"] / told["rounds"], abs=1e-4)
    assert 0 <= told["queue_ms"] <= told["ttft_ms"] <= told["total_ms"]


def test_a_request_without_stream_gets_one_chunk_with_everything(tokenizer):
    streamed, whole = Bench(tokenizer).run(request(), request(stream=False))
    assert len(streamed.chunks) > 1
    assert len(whole.chunks) == 1
    assert (whole.text, whole.tokens) == (streamed.text, streamed.tokens)


def test_the_texts_of_the_tokens_make_up_the_text(tokenizer):
    [listener] = Bench(tokenizer).run(request(max_tokens=40, sampling=SAMPLED, stop_strings=("zz",)))
    assert "".join(text for chunk in listener.chunks for text in chunk.token_texts) == listener.text
    assert all(len(chunk.token_texts) == len(chunk.token_ids) for chunk in listener.chunks)


def test_nothing_follows_an_accepted_stop_token(tokenizer):
    full = plain_decoding(request(max_tokens=20))
    for index in (0, 3, 5):
        stop = full[index]
        [listener] = Bench(tokenizer, "full", noise=0.0).run(request(max_tokens=20, stop_tokens=frozenset({stop})))
        assert listener.tokens == full[: full.index(stop) + 1]
        assert listener.chunks[-1].finish_reason is FinishReason.STOP


def test_a_stop_string_across_tokens_ends_the_text_before_it(tokenizer):
    [free] = Bench(tokenizer, "full", noise=0.0).run(request(max_tokens=30))
    stop = free.text[9:12]
    [listener] = Bench(tokenizer, "full", noise=0.0).run(request(max_tokens=30, stop_strings=(stop,)))
    assert listener.text == free.text[: free.text.index(stop)]
    assert listener.chunks[-1].finish_reason is FinishReason.STOP


def test_max_tokens_is_exact(tokenizer):
    for count in range(1, 14):
        bench = Bench(tokenizer, "full", noise=0.0)
        [listener] = bench.run(request(max_tokens=count))
        assert len(listener.tokens) == count
        assert listener.chunks[-1].finish_reason is FinishReason.LENGTH


def test_log_probabilities_are_the_targets_own_for_every_token(tokenizer):
    speculative, plain = (
        Bench(tokenizer, policy).run(request(max_tokens=20, return_log_probs=True))[0] for policy in ("full", "none")
    )
    values = [[value for chunk in listener.chunks for value in chunk.log_probs] for listener in (speculative, plain)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    assert len(values[0]) == 20 and max(values[0]) <= 0.0
    [silent] = Bench(tokenizer).run(request())
    assert all(chunk.log_probs == () for chunk in silent.chunks)


def test_without_drafting_the_drafter_is_never_called_and_no_features_are_asked_for(tokenizer):
    for policy, changes in (("none", {}), ("full", {"max_draft_tokens": 0})):
        bench = Bench(tokenizer, policy)
        bench.run(request("a longer prompt than the chunk", **changes))
        assert bench.drafter.steps == []
        assert not any(step.wants_features.any() for step in bench.target.steps)


def test_max_draft_tokens_bounds_one_requests_drafts_only(tokenizer):
    bench = Bench(tokenizer, "full")
    few, many = bench.run(request(max_draft_tokens=1, max_tokens=30), request(max_tokens=30))
    assert json.loads(few.chunks[-1].statistics)["verified_by_position"][1:] == [0] * (GAMMA - 1)
    assert json.loads(many.chunks[-1].statistics)["verified_by_position"][1] > 0


def test_a_budget_of_zero_for_a_while_leaves_the_drafters_state_valid(tokenizer):
    class Moody:
        """Verifies everything for some rounds, then nothing for many, and so on."""

        uses_drafter, uses_lookup, learns = True, False, True

        def __init__(self):
            self.rounds = 0

        def plan(self, batch):
            self.rounds += 1
            everybody = np.ones(batch.size, np.bool_)
            busy = self.rounds % 40 < 5
            return Plan(everybody & busy, ~everybody, batch.floors, FixedLength(GAMMA))

    bench = Bench(tokenizer, "full")
    bench.loop.policy = Moody()
    one = request(max_tokens=100)
    [listener] = bench.run(one)
    assert listener.tokens == plain_decoding(one)
    accepted = [origin == Origin.ACCEPTED for origin in listener.origins]
    assert any(accepted[:20]) and not any(accepted[25:50]) and any(accepted[50:])


@pytest.mark.parametrize("policy", ["none", "fixed:2", "full+lookup", "adaptive+lookup"])
def test_a_diagnosis_verifies_whole_drafts_and_commits_what_the_policy_would(tokenizer, policy):
    requests = [request(prompt, max_tokens=25) for prompt in ("once upon a time", "abcabcabcab")]
    bench = Bench(tokenizer, policy, diagnose=True)
    listeners = bench.run(*requests)
    assert [listener.tokens for listener in listeners] == [plain_decoding(one) for one in requests]
    statistics = [json.loads(listener.chunks[-1].statistics) for listener in listeners]
    assert all(told["acceptable"] >= told["accepted"] for told in statistics)
    if policy == "fixed:2":
        assert all(told["verified_by_position"][2:] == [0, 0] for told in statistics)
        assert any(told["acceptable"] > told["accepted"] for told in statistics)
        assert max(step.draft_counts.max() for step in bench.target.steps) == GAMMA


def test_a_diagnosis_keeps_the_sampled_law(tokenizer):
    second = [
        [listener.tokens[1] for listener in Bench(tokenizer, "fixed:1", 2.0, 200, diagnose=diagnose, max_queue=800).run(
            *[request("ab", max_tokens=4, seed=seed, sampling=SAMPLED) for seed in range(800)]
        )] for diagnose in (False, True)
    ]
    from scipy.stats import chi2_contingency

    likely = [token for token in set(second[0]) if second[0].count(token) >= 10]
    table = [[row.count(token) for token in likely] + [sum(token not in likely for token in row)] for row in second]
    assert chi2_contingency(np.array(table) + 1e-9).pvalue > 1e-3


def test_prompts_are_read_in_chunks_shared_by_all_and_ride_with_verification(tokenizer):
    bench = Bench(tokenizer, prefill_chunk=8)
    early = bench.submit(request("ab", max_tokens=40))
    for _ in range(2):
        bench.loop.round()
    late = [bench.submit(request("x" * 30)), bench.submit(request("y" * 30))]
    bench.loop.round()
    step = bench.target.steps[-1]
    assert step.positions[0] > 0 and step.samples.tolist() == [True, False]
    assert step.token_counts[1:].tolist() == [8]
    bench.finish(early, *late)
    assert max(int(step.token_counts[~step.samples].sum()) for step in bench.target.steps) <= 8


def test_an_engine_failure_ends_the_requests_of_that_step_and_nobody_else(tokenizer):
    for engine in ("target", "drafter"):
        bench = Bench(tokenizer, max_slots=2)
        doomed = [bench.submit(request(max_tokens=40, seed=seed)) for seed in range(2)]
        waiting = bench.submit(request(max_tokens=5))
        for _ in range(4):
            bench.loop.round()
        engines_of = bench.loop._engines

        def broken(step):
            raise EngineError("the stub is gone")

        bench.loop._engines = dataclasses.replace(engines_of, **{engine: broken})
        bench.loop.round()
        bench.loop._engines = engines_of
        assert all(isinstance(listener.error, EngineError) for listener in doomed)
        bench.finish(waiting)
        assert waiting.tokens == plain_decoding(request(max_tokens=5))
        assert bench.free_slots


def test_a_client_that_breaks_costs_nobody_anything(tokenizer):
    class Broken(Listener):
        def send(self, chunk):
            raise RuntimeError("gone")

        def fail(self, error):
            raise RuntimeError("still gone")

    bench = Bench(tokenizer)
    bench.orchestrator.submit(request(max_tokens=40), Broken())
    [other] = bench.run(request(max_tokens=40))
    assert other.tokens == plain_decoding(request(max_tokens=40))
    assert bench.free_slots


def test_a_cancelled_request_gives_its_slot_back_in_the_next_round(tokenizer):
    bench = Bench(tokenizer, max_slots=1)
    running, waiting = bench.submit(request(max_tokens=100)), bench.submit(request(max_tokens=100))
    bench.loop.round()
    running.cancelled = waiting.cancelled = True
    bench.loop.round()
    assert isinstance(running.error, CancelledRequestError) and isinstance(waiting.error, CancelledRequestError)
    assert bench.free_slots
    [after] = bench.run(request(max_tokens=5))
    assert after.finished


def test_more_requests_than_slots_are_served_in_order_of_arrival(tokenizer):
    bench = Bench(tokenizer, max_slots=2)
    requests = [request([10 + n, 11, 12], max_tokens=5 + 7 * n % 10) for n in range(9)]
    listeners = bench.run(*requests)
    assert all(listener.finished for listener in listeners)
    starts = [step.tokens[(step.token_counts.cumsum() - step.token_counts)[step.positions == 0]]
              for step in bench.target.steps]
    assert np.concatenate(starts).tolist() == [10 + n for n in range(9)]
    assert max(len(step.slots) for step in bench.target.steps) == 2


def test_the_kv_pool_is_never_overbooked(tokenizer):
    small = dataclasses.replace(TARGET_LIMITS, kv_blocks=8)
    bench = Bench(tokenizer, target=small, drafter=DRAFTER_LIMITS)
    listeners = bench.run(*[request("x" * (5 * n % 40 + 1), max_tokens=40, seed=n) for n in range(12)])
    assert all(listener.finished for listener in listeners)


def test_a_request_that_can_never_fit_is_refused_at_once(tokenizer):
    small = dataclasses.replace(TARGET_LIMITS, kv_blocks=3)
    bench = Bench(tokenizer, target=small)
    with pytest.raises(InvalidRequestError, match="KV blocks"):
        bench.submit(request(max_tokens=60))


def test_a_full_queue_refuses_and_serves_the_rest(tokenizer):
    bench = Bench(tokenizer, max_slots=2, max_queue=5)
    listeners = [bench.submit(request(max_tokens=5, seed=seed)) for seed in range(5)]
    with pytest.raises(OverloadedError, match="5 requests are waiting"):
        bench.submit(request())
    bench.finish(*listeners)
    assert bench.free_slots


def test_a_large_request_is_not_overtaken_for_ever_by_small_ones(tokenizer):
    bench = Bench(tokenizer, target=dataclasses.replace(TARGET_LIMITS, kv_blocks=12))
    small = [bench.submit(request("x", max_tokens=20, seed=seed)) for seed in range(4)]
    bench.loop.round()
    large = bench.submit(request("y" * 100, max_tokens=40))
    later = [bench.submit(request("z", max_tokens=20, seed=seed)) for seed in range(20)]
    while not any(sequence.sink is large for sequence in bench.loop.active):
        bench.loop.round()
    assert not any(listener.chunks for listener in later)
    bench.finish(*small, *later)

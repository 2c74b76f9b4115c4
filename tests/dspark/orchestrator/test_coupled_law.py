"""Coupled verification on real engines: the target's law, and one stream a seed whatever the schedule."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.orchestrator import Engines, Tokenizer
from dspark.scheduling import make_policy
from dspark.verification import SamplingSettings
from test_sampled_law import GAMMA, LENGTH, LEVEL, STREAMS, VOCABULARY, engines_with, goodness_of_fit, law, streams
from test_sampled_law import checkpoint as checkpoint

SETTINGS = SamplingSettings(temperature=1.2, top_p=0.95)
POLICIES = ("none", "fixed:2", "adaptive+lookup", "adaptive:global")


class Costs:
    """Drafts pay where they survive about once in seven times: so how many do depends on the blocks."""

    def target_seconds(self, sequences, tokens, context):
        return 10.0 + 0.05 * tokens

    def drafter_seconds(self, sequences):
        return 0.01


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory):
    target, drafter = engines_with("vanilla", checkpoint, tmp_path_factory.mktemp("coupled"))
    engines = Engines(target.step, drafter.step, target.limits, drafter.limits)

    def run(policy, **options):
        costs = Costs() if policy.startswith("adaptive") else None
        found = make_policy(policy, GAMMA, costs)
        return streams(engines, Tokenizer(checkpoint), found, SETTINGS, verification="coupled", **options)

    return run


def test_streams_have_the_targets_law_under_the_retrospective_schedule(served, checkpoint):
    outputs, verified = served("adaptive:global")
    counts = np.zeros((VOCABULARY,) * LENGTH)
    for tokens in outputs:
        counts[tuple(tokens[:LENGTH])] += 1
    assert verified > STREAMS / 4                # speculation did take place
    assert goodness_of_fit(counts, law(checkpoint, SETTINGS)) > LEVEL


def test_a_seed_gives_the_same_tokens_under_every_policy_alone_and_among_neighbours(served):
    expected, verified = served("full", length=20, count=60)
    assert verified > 60
    for policy in POLICIES:
        outputs, _ = served(policy, length=20, count=60)
        assert outputs == expected, policy
    alone, _ = served("full", length=20, count=3, max_slots=1)
    assert alone == expected[:3]

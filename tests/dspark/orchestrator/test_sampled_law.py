"""What the whole loop samples, on real engines with real drafters: exactly the target's law (dspark-spec, section 6).

A tiny random target over eight tokens, tiny random (so: bad) drafters. The law of the first three output tokens is
enumerated with the torch definition of the target and compared with hundreds of streams by chi-square; seeds are fixed.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dspark.engines.openvino_drafter import OpenVinoDrafter
from dspark.engines.openvino_target import OpenVinoTarget
from dspark.orchestrator import Engines, GenerationRequest, Orchestrator, Tokenizer
from dspark.scheduling import Policy, make_policy
from dspark.settings import ServingSettings
from dspark.verification import SamplingSettings, target_distribution
from dspark_build.drafters import initialise_drafter, reduce_vocabulary, save_drafter_checkpoint
from dspark_build.export.drafter import DrafterSizes, build_drafter
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.models.target import Target
from dspark_build.tiny import make_tiny_target
from scipy.stats import chisquare
from toy_engines import Listener

VOCABULARY, GAMMA, LENGTH = 8, 3, 3
PROMPT = np.array([3, 5, 6, 4], np.int32)
STREAMS = 1500
LEVEL = 1e-3                         # a right sampler fails a case once in a thousand choices of seeds; ours are fixed
PATIENCE_S = 300

CASES = {
    "none": ("full", SamplingSettings()),
    "vanilla": ("full", SamplingSettings(temperature=1.3)),
    "gated": ("threshold:0.45", SamplingSettings(top_k=5, top_p=0.9)),
    "rnn": ("fixed:2", SamplingSettings(temperature=0.8, min_p=0.05, repetition_penalty=1.2)),
    "vanilla over a part of the vocabulary": ("full", SamplingSettings()),
}
PART = np.array([1, 2, 4, 5, 7])     # of the eight tokens: the others can only come from the target's residual


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("law") / "target"
    return make_tiny_target(folder, vocabulary=VOCABULARY, hidden=32, head_size=8, intermediate=48, sharpness=1.5)


def engines_with(name: str, checkpoint: Path, folder: Path) -> tuple[OpenVinoTarget, OpenVinoDrafter]:
    head, _, reduced = name.partition(" ")
    drafter = initialise_drafter(
        checkpoint, target_layer_ids=[0, 1], start_layers=[1], block_size=GAMMA, markov_head_type=head, markov_rank=8,
        mask_token_id=VOCABULARY - 1,
    )
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.startswith("markov_head"):
                parameter.normal_(0, 0.7, generator=random)
            elif name.startswith("confidence_head"):     # on both sides of a threshold of 0.5, if not by much
                parameter.normal_(0, 0.1, generator=random)
    if reduced:
        drafter = reduce_vocabulary(drafter, PART)
    saved = save_drafter_checkpoint(drafter, folder / "checkpoint", checkpoint)
    build_target(checkpoint, saved, "fp32", folder / "target", TargetSizes(64, max_slots=32, kv_tokens=2048))
    build_drafter(saved, checkpoint, "fp32", folder / "drafter", DrafterSizes(max_slots=32, window=16))
    return OpenVinoTarget(folder / "target"), OpenVinoDrafter(folder / "drafter")


def law(checkpoint: Path, settings: SamplingSettings) -> np.ndarray:
    """The target's own probability [V, V, V] of the first three output tokens, by enumeration."""
    target = Target.load(checkpoint)
    joint = np.zeros((VOCABULARY,) * LENGTH)
    weights: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, weight in weights.items():
            history = np.concatenate([PROMPT, np.array(prefix, np.int32)])
            with torch.no_grad():
                logits = target(torch.from_numpy(history.astype(np.int64))[None])[0, -1].numpy()
            distribution = target_distribution(logits, settings, history)
            for token, probability in zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True):
                longer[(*prefix, token)] = weight * probability
        weights = longer
    for prefix, weight in weights.items():
        joint[prefix] = weight
    return joint


def sampled(engines: Engines, tokenizer: Tokenizer, policy: str, settings: SamplingSettings) -> tuple[np.ndarray, int]:
    """Counts [V, V, V] of the streams' tokens, and how many draft tokens were verified."""
    outputs, verified = streams(engines, tokenizer, make_policy(policy, GAMMA), settings)
    counts = np.zeros((VOCABULARY,) * LENGTH)
    for tokens in outputs:
        counts[tuple(tokens[:LENGTH])] += 1
    return counts, verified


def streams(
    engines: Engines, tokenizer: Tokenizer, policy: Policy, settings: SamplingSettings, length: int = LENGTH + 1,
    count: int = STREAMS, **serving: Any,
) -> tuple[list[list[int]], int]:
    """The tokens of `count` streams with seeds from 0, and how many draft tokens were verified.

    One token more than is looked at: a last token is never drafted for.
    """
    verified = 0

    def observe(report):
        nonlocal verified
        verified += report.verified

    orchestrator = Orchestrator(
        engines, tokenizer, policy, ServingSettings("", max_queue=STREAMS, **serving), observer=observe
    )
    listeners = [Listener() for _ in range(count)]
    for seed, listener in enumerate(listeners):
        orchestrator.submit(GenerationRequest(PROMPT, length, settings, seed), listener)
    orchestrator.start()
    deadline = time.monotonic() + PATIENCE_S
    while not all(listener.over for listener in listeners):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    orchestrator.close()
    return [listener.tokens for listener in listeners], verified


def goodness_of_fit(counts: np.ndarray, joint: np.ndarray) -> float:
    """Chi-square p-value; sequences expected fewer than five times are taken together."""
    expected, observed = STREAMS * joint.ravel(), counts.ravel()
    assert not observed[expected == 0].any()
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    keep = expected > 0
    return float(chisquare(observed[keep], expected[keep] * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("head", CASES)
def test_streams_have_the_targets_law_with_every_head(head, checkpoint, tmp_path):
    policy, settings = CASES[head]
    target, drafter = engines_with(head, checkpoint, tmp_path)
    engines = Engines(target.step, drafter.step, target.limits, drafter.limits)
    counts, verified = sampled(engines, Tokenizer(checkpoint), policy, settings)
    assert verified > STREAMS / 2                # speculation did take place
    assert goodness_of_fit(counts, law(checkpoint, settings)) > LEVEL


def test_the_comparison_notices_a_sampler_at_another_temperature(checkpoint):
    joint = law(checkpoint, SamplingSettings())
    wrong = law(checkpoint, SamplingSettings(temperature=1.15))
    counts = np.random.default_rng(0).multinomial(STREAMS, wrong.ravel()).reshape(wrong.shape)
    assert goodness_of_fit(counts, joint) < LEVEL


def test_every_cell_of_the_law_is_a_probability(checkpoint):
    joint = law(checkpoint, CASES["gated"][1])
    assert joint.min() >= 0 and abs(joint.sum() - 1) < 1e-9
    assert any(joint[cell] == 0 for cell in itertools.product(range(VOCABULARY), repeat=LENGTH))

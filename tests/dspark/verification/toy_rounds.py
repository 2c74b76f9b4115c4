"""A target and drafters over a handful of tokens, small enough for their laws to be written down exactly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
from dspark.scheduling import make_policy, survival
from dspark.verification import (
    SamplingSettings,
    acceptance_probability,
    draft_distribution,
    residual,
    target_distribution,
    verify_block,
)

V, GAMMA, D, RANK = 4, 2, 3, 2
PROMPT = (2, 0, 3)  # the last one is the anchor
CONFIDENCE_BIAS = 1.0  # such that a threshold of 0.6 cuts the block after some first drafts and not after others


class Target:
    """Logits that depend on the last two tokens."""

    def __init__(self, seed=0, spread=1.5):
        self.table = (spread * np.random.default_rng(seed).standard_normal((V, V, V))).astype(np.float32)

    def logits(self, prefix):
        return self.table[prefix[-2], prefix[-1]]


class Drafter:
    """A random drafter with one of the four sequential heads of dspark-spec, section 2; p^d cut to `candidates` tokens.

    With `closeness` to a target its base logits are the target's own, blurred; without, they are unrelated to it.
    """

    def __init__(self, head, target=None, temperature=1.0, candidates=V, seed=5):
        rng = np.random.default_rng(seed)
        self.head, self.temperature, self.candidates = head, temperature, candidates
        self.hidden = rng.standard_normal((GAMMA, D))
        self.base = 2.0 * rng.standard_normal((GAMMA, V))
        if target is not None:
            self.base = 0.3 * self.base + target.table.mean(axis=(0, 1))
        self.w1, self.w2 = rng.standard_normal((V, RANK)), 1.5 * rng.standard_normal((RANK, V))
        self.gate = rng.standard_normal((D + RANK, RANK))
        self.joint = rng.standard_normal((2 * RANK + D, 3 * RANK))
        self.confidence = rng.standard_normal(D + RANK)
        self.position = cache(self._position)

    def _bias(self, previous):
        k, embedded = len(previous) - 1, self.w1[previous[-1]]
        if self.head == "none":
            return 0.0
        if self.head == "vanilla":
            return embedded @ self.w2
        if self.head == "gated":
            return (sigmoid(np.concatenate([self.hidden[k], embedded]) @ self.gate) * embedded) @ self.w2
        state = np.zeros(RANK)
        for i, token in enumerate(previous):
            z = np.concatenate([state, self.w1[token], self.hidden[i]]) @ self.joint
            gate, candidate, output = np.split(z, 3)
            state = sigmoid(gate) * state + (1 - sigmoid(gate)) * np.tanh(candidate)
        return np.tanh(output) @ self.w2

    def _position(self, previous):
        """Candidates [K], their probabilities [K], confidence logit of x_k after `previous` = (anchor, .., x_{k-1})."""
        k = len(previous) - 1
        logits = (self.base[k] + self._bias(previous)) / self.temperature
        ids = np.argsort(-logits)[: self.candidates]
        probs = np.exp(logits[ids] - logits.max())
        probs = (probs / probs.sum()).astype(np.float32)
        confidence = CONFIDENCE_BIAS + np.concatenate([self.hidden[k], self.w1[previous[-1]]]) @ self.confidence
        return ids.astype(np.int32), probs, np.float32(confidence)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference_probabilities(logits, settings, history):
    """p^t [V] by sorting everything, written independently of the product."""
    logits = np.array(logits, np.float64)
    for token in set(history) if settings.repetition_penalty != 1 else ():
        logits[token] *= settings.repetition_penalty if logits[token] < 0 else 1 / settings.repetition_penalty
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if settings.temperature == 0:
        return np.eye(len(logits))[order[0]]
    probs = np.exp((logits - logits.max()) / settings.temperature)
    if settings.top_k:
        probs[order[settings.top_k :]] = 0
    if settings.top_p < 1:
        mass, goal = 0.0, settings.top_p * probs.sum()
        for token in order:
            probs[token] *= mass < goal
            mass += probs[token]
    probs[probs < settings.min_p * probs.max()] = 0
    return probs / probs.sum()


PLAIN = SamplingSettings()


@dataclass(frozen=True)
class Setup:
    """One way of serving the toy model."""

    target: Target
    drafter: Drafter
    settings: SamplingSettings = PLAIN
    policy: str = "full"

    @cache  # noqa: B019 - a handful of setups, all alive to the end
    def block(self, drafts):
        """draft_ids, draft_probs [gamma, K] and the verify length of a drafted block."""
        rows = [self.drafter.position((PROMPT[-1], *drafts[:k])) for k in range(GAMMA)]
        confidence = np.array([[row[2] for row in rows]], np.float32)
        lengths = make_policy(self.policy, GAMMA).rule.lengths(survival(confidence), np.array([GAMMA], np.int32))
        return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows]), int(lengths[0])

    def verify(self, drafts, uniforms):
        """The round's verdict on a drafted block: (accepted, next token)."""
        ids, probs, length = self.block(drafts)
        verdict = verify_block(
            np.stack([self.target.logits((*PROMPT, *drafts[:k])) for k in range(length + 1)]),
            np.array(drafts[:length], np.int32),
            ids[:length],
            probs[:length],
            self.settings,
            np.array(PROMPT, np.int32),
            uniforms,
        )
        return verdict.accepted, verdict.next_token

    def p_target(self, prefix):
        return target_distribution(self.target.logits(prefix), self.settings, np.array(prefix, np.int32))

    def p_draft(self, drafts_before):
        return draft_distribution(*self.drafter.position((PROMPT[-1], *drafts_before))[:2])

    def draft_probability(self, drafts):
        return np.prod([self.p_draft(drafts[:k]).probability(x) for k, x in enumerate(drafts)])

    def acceptances(self, drafts):
        """Probability that each draft of the block is accepted, given those before it."""
        return [
            acceptance_probability(self.p_target((*PROMPT, *drafts[:k])), self.p_draft(drafts[:k]), drafts[k])
            for k in range(self.block(drafts)[2])
        ]

    def next_token(self, drafts, accepted):
        """The distribution that a round with so many accepted drafts draws its final token from."""
        p_target = self.p_target((*PROMPT, *drafts[:accepted]))
        return p_target if accepted == self.block(drafts)[2] else residual(p_target, self.p_draft(drafts[:accepted]))

    def possible_drafts(self):
        return [x for x in itertools.product(range(V), repeat=GAMMA) if self.draft_probability(x) > 0]


def sequence_law(next_probabilities, length=GAMMA + 1):
    """Law [V, V, ..] of the `length` tokens after the prompt, given next_probabilities(prefix) -> [V]."""
    law = np.zeros((V,) * length)
    for tokens in itertools.product(range(V), repeat=length):
        law[tokens] = np.prod([next_probabilities((*PROMPT, *tokens[:k]))[t] for k, t in enumerate(tokens)])
    return law


def dense(distribution):
    return np.bincount(distribution.ids, distribution.probs, minlength=V)


TARGET = Target()
EVERYTHING = SamplingSettings(temperature=1.2, top_k=3, top_p=0.95, min_p=0.05, repetition_penalty=1.3)
CASES = {
    "plain": Setup(TARGET, Drafter("vanilla", TARGET)),
    "warm": Setup(TARGET, Drafter("vanilla", TARGET, temperature=0.7), SamplingSettings(temperature=0.7)),
    "top_k": Setup(TARGET, Drafter("vanilla", TARGET), SamplingSettings(top_k=2)),
    "top_p": Setup(TARGET, Drafter("vanilla", TARGET), SamplingSettings(top_p=0.8)),
    "min_p": Setup(TARGET, Drafter("vanilla", TARGET), SamplingSettings(min_p=0.2)),
    "repetition_penalty": Setup(TARGET, Drafter("vanilla", TARGET), SamplingSettings(repetition_penalty=1.6)),
    "everything": Setup(TARGET, Drafter("vanilla", TARGET), EVERYTHING),
    "bad_drafter": Setup(TARGET, Drafter("vanilla", seed=9, temperature=0.4)),
    "filtered_drafter": Setup(TARGET, Drafter("vanilla", TARGET, candidates=2)),
    "filtered_drafter_and_target": Setup(TARGET, Drafter("gated", candidates=2), SamplingSettings(top_k=2)),
    "fixed_cut": Setup(TARGET, Drafter("vanilla", TARGET), policy="fixed:1"),
    "no_draft_verified": Setup(TARGET, Drafter("vanilla", TARGET), policy="fixed:0"),
    **{
        f"{head}_head_cut_by_confidence": Setup(
            TARGET, Drafter(head, TARGET), SamplingSettings(temperature=0.8, top_p=0.9), policy="threshold:0.6"
        )
        for head in ("none", "vanilla", "gated", "rnn")
    },
}

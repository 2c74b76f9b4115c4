"""The acceptance rules (dspark-spec, section 6): what is kept of a drafted block, and the token after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Float32, Int32
from dspark.errors import EngineError
from dspark.verification.coupling import coupled_choice
from dspark.verification.distribution import Distribution
from dspark.verification.sampling import SamplingSettings
from dspark.verification.target import greedy_token, target_distribution


@dataclass(frozen=True)
class Verdict:
    """What one request's block came to: `accepted` drafts stand, `next_token` follows them and is the next anchor."""

    accepted: int
    next_token: int


def verify_block(
    logits: Float32,
    draft_tokens: Int32,
    draft_ids: Int32,
    draft_probs: Float32,
    sampling: SamplingSettings,
    history: Int32,
    uniforms: Float32,
) -> Verdict:
    """Accept a prefix of the draft x_1..x_l and draw one token of the target's own after it (dspark-spec, section 6).

    logits [1 + l, V] follow the anchor and every draft; draft_tokens [l]; draft_ids and draft_probs [l, K] are p^d, id
    -1 pads; history [n] is prompt and output up to and including the anchor; uniforms [gamma + 1] in [0, 1): the k-th
    decides on draft k, the last draws the final token. Rows beyond the first rejection are not looked at. A greedy
    request needs no p^d. Raises EngineError for logits that are not finite and for a draft that p^d excludes.
    """
    tokens = np.concatenate([history, draft_tokens]) if sampling.repetition_penalty != 1.0 else history
    seen = history.size
    length = len(draft_tokens)
    if sampling.greedy:
        return _keep_while_equal(draft_tokens, lambda k: greedy_token(logits[k], sampling, tokens[: seen + k]))
    for k in range(length):
        p_target = target_distribution(logits[k], sampling, tokens[: seen + k])
        p_draft = draft_distribution(draft_ids[k], draft_probs[k])
        if uniforms[k] >= acceptance_probability(p_target, p_draft, int(draft_tokens[k])):
            return Verdict(k, residual(p_target, p_draft).draw(float(uniforms[-1])))
    bonus = target_distribution(logits[length], sampling, tokens[: seen + length])
    return Verdict(length, bonus.draw(float(uniforms[-1])))


def verify_block_coupled(
    logits: Float32, draft_tokens: Int32, sampling: SamplingSettings, history: Int32, noise_keys: Int32
) -> Verdict:
    """Accept the draft x_1..x_l while it equals the target's own choice, and end with that choice.

    The choice at every position is drawn from p^t by the request's noise of that position (`coupled_choice`), or is
    the argmax of a greedy request: so the output does not depend on what was drafted, by whom, and how far it was
    verified. Arrays as in `verify_block`; noise_keys [gamma + 1] are those of the positions after the anchor.
    """
    tokens = np.concatenate([history, draft_tokens]) if sampling.repetition_penalty != 1.0 else history
    seen = history.size

    def choose(k: int) -> int:
        if sampling.greedy:
            return greedy_token(logits[k], sampling, tokens[: seen + k])
        return coupled_choice(target_distribution(logits[k], sampling, tokens[: seen + k]), int(noise_keys[k]))

    return _keep_while_equal(draft_tokens, choose)


def _keep_while_equal(draft_tokens: Int32, choose: Callable[[int], int]) -> Verdict:
    """Drafts stand while each is what the target chooses at its place; the last choice follows them."""
    for k, draft in enumerate(draft_tokens.tolist()):
        if (choice := choose(k)) != draft:
            return Verdict(k, choice)
    return Verdict(len(draft_tokens), choose(len(draft_tokens)))


def draft_distribution(ids: Int32, probs: Float32) -> Distribution:
    """p^d at one position from its candidates [K] (distinct; id -1 or probability 0 pads), made to sum to 1 in fp64."""
    present = np.flatnonzero((ids >= 0) & (probs > 0))
    present = present[ids[present].argsort()]
    weights = probs[present].astype(np.float64)
    return Distribution(ids[present].astype(np.int64), weights, float(weights.sum()))


def acceptance_probability(p_target: Distribution, p_draft: Distribution, draft: int) -> float:
    """min(1, p^t(x) / p^d(x)). Raises EngineError where p^d(x) is 0: x was not drawn from this p^d."""
    drafted = p_draft.probability(draft)
    if not drafted > 0.0:
        raise EngineError(f"draft token {draft} has probability 0 in its own draft distribution")
    return min(1.0, p_target.probability(draft) / drafted)


def residual(p_target: Distribution, p_draft: Distribution) -> Distribution:
    """norm(max(0, p^t - p^d)), what a rejected position is drawn from.

    Where rounding leaves nothing of it (p^t = p^d, so that a rejection was itself rounding) it is p^t.
    """
    at = p_target.ids.searchsorted(p_draft.ids)
    shared = at < p_target.ids.size
    shared[shared] = p_target.ids[at[shared]] == p_draft.ids[shared]
    weights = p_target.weights.copy()
    weights[at[shared]] -= p_draft.probs[shared] * p_target.total
    np.maximum(weights, 0.0, out=weights)
    total = float(weights.sum())
    return Distribution(p_target.ids, weights, total) if total > 0.0 else p_target

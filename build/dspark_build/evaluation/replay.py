"""Replay: what a drafter would have achieved while the target wrote a recorded response, without running the target.

Serving is lossless, so the recorded text is as good a sample of what it writes as any. What is left to decide is where
its rounds ended. At temperature 0 a draft token is accepted where it equals the text. Otherwise, given that the target
said x at a position that was drafted, the accepted draft was x with probability min(p^d(x), p^t(x)) / p^t(x) (the
acceptance rule is a maximal coupling; dspark-spec, section 6), with p^d after temperature and truncation as it is drawn
from, and p^t at the response's temperature. One uniform a token decides; every drafter is given the same ones.

The convention at the end is that of serving with `max_tokens` set to the response's length: a round drafts no more than
leaves room for the target's own token. So a response of n tokens takes rounds that commit n - 1 tokens (the first comes
with the prompt), and τ = committed tokens / rounds = 1 + accepted / rounds, as the server counts it.

Axes: A blocks, one anchored at each response token but the last; gamma block size.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from dspark.drafting import PromptLookup
from dspark.engines.contract import Int32
from torch import Tensor

from dspark_build.models.block_sampling import CANDIDATES, candidate_probabilities, most_likely
from dspark_build.models.contract import BlockDrafter
from dspark_build.training.blocks import make_batch
from dspark_build.training.data import TrainingSequence

ANCHORS_PER_PASS = 64                # blocks that share one pass over the context: more cost memory and gain nothing
LOGIT_ROWS = 256                     # rows whose logits over V are held at once
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outcomes:
    """What each block of a response comes to, whether or not a round is anchored there."""

    drafted: Int32                   # [A] drafts that are verified
    accepted: Int32                  # [A] the first so many of them stand


@dataclass(frozen=True)
class Recorded:
    """A response with what decides about drafts for it, whoever makes them."""

    sequence: TrainingSequence
    target_probs: Float64            # [n] p^t of each token at the response's temperature; 1 at temperature 0
    uniforms: Float64                # [n] in [0, 1), one for each token

    def room(self, gamma: int) -> Int32:
        """How many drafts a block may hold [A]: at most gamma, and one token less than is left of the text."""
        return np.minimum(gamma, np.arange(self.sequence.anchors - 1, -1, -1)).astype(np.int32)


@torch.no_grad()
def recorded(sequence: TrainingSequence, target_head: Tensor, seed: int) -> Recorded:
    """Prepare a response; target_head [V, d] is the target's lm_head.

    The uniforms follow from the seed and the text. log Z is cached for temperature 1; others take a pass over V.
    """
    tokens, temperature = sequence.tokens, sequence.temperature
    probs = np.ones(len(tokens))
    first = sequence.prompt_length
    if temperature > 0:
        device = target_head.device
        rows = torch.from_numpy(sequence.last[first - 1 : -1].astype(np.float32)).to(device)
        labels = torch.from_numpy(tokens[first:].astype(np.int64)).to(device)
        own = (rows * target_head[labels]).sum(-1) / temperature
        log_z = torch.from_numpy(sequence.log_z[first - 1 : -1].astype(np.float32)).to(device)
        if temperature != 1:
            parts = [torch.logsumexp(part @ target_head.T / temperature, -1) for part in rows.split(LOGIT_ROWS)]
            log_z = torch.cat(parts)
        probs[first:] = (own - log_z).exp().clamp(max=1).double().cpu().numpy()
    random = np.random.default_rng((seed, zlib.crc32(tokens.tobytes())))
    return Recorded(sequence, probs, random.random(len(tokens)))


@torch.no_grad()
def replay_drafter(
    drafter: BlockDrafter, response: Recorded, window: int, device: torch.device | str = "cpu"
) -> Outcomes:
    """The outcome of every block that `drafter` would draft, seeing `window` context rows.

    Only positions whose predecessors are accepted are sent through the head over V, the dearest part.
    """
    sequence, gamma = response.sequence, drafter.config.block_size
    drafted = response.room(gamma)
    accepted = np.zeros_like(drafted)
    for first in range(0, np.count_nonzero(drafted), ANCHORS_PER_PASS):
        places = np.arange(first, min(first + ANCHORS_PER_PASS, np.count_nonzero(drafted)))
        batch = make_batch([sequence], [places + sequence.prompt_length], gamma, window, device)
        hidden = drafter.block_hidden(batch)[0]
        latents = drafter.latents(hidden, batch.previous[0])
        alive = places
        for k in range(gamma):
            alive = alive[drafted[alive] > k]
            if not len(alive):
                break
            rows = torch.from_numpy(alive - first).to(hidden.device)
            logits = drafter.lm_head(hidden[rows, k])
            if drafter.config.markov_rank:
                logits = logits + drafter.markov_head.bias(latents[rows, k])
            alive = alive[_accepted(drafter, logits, response, alive + sequence.prompt_length + k + 1)]
            accepted[alive] += 1
    return Outcomes(drafted, accepted)


def _accepted(
    drafter: BlockDrafter, logits: Tensor, response: Recorded, positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether drafts from `logits` [M, Vd] for the tokens at `positions` [M] are accepted [M]."""
    labels = torch.from_numpy(response.sequence.tokens[positions].astype(np.int64)).to(logits.device)
    temperature = response.sequence.temperature
    if temperature == 0:
        return (drafter.target_ids(logits.argmax(-1)) == labels).cpu().numpy()
    values, columns = most_likely(logits, logits.shape[-1], min(CANDIDATES, logits.shape[-1]))
    probs = candidate_probabilities(values, logits.new_full((len(logits),), temperature))
    draft_probs = (probs * (drafter.target_ids(columns) == labels[:, None])).sum(-1).double().cpu().numpy()
    return response.uniforms[positions] * response.target_probs[positions] < draft_probs


def replay_lookup(response: Recorded, gamma: int, min_match: int, max_match: int) -> tuple[Outcomes, Int32]:
    """The outcome of every block that prompt lookup would draft, and the lengths of its matches [A], 0 for none.

    Its p^d is 1 for one token: a draft is accepted where it equals the text, at any temperature.
    """
    sequence, room = response.sequence, response.room(gamma)
    drafted, accepted, matches = np.zeros_like(room), np.zeros_like(room), np.zeros_like(room)
    lookup = PromptLookup(min_match, max_match)
    lookup.extend(sequence.tokens[: sequence.prompt_length].tolist())
    for a, limit in enumerate(room.tolist()):
        anchor = sequence.prompt_length + a
        lookup.extend([int(sequence.tokens[anchor])])
        draft = lookup.draft(gamma)
        tokens = draft.tokens[:limit]
        differing = np.flatnonzero(tokens != sequence.tokens[anchor + 1 : anchor + 1 + len(tokens)])
        drafted[a], matches[a] = len(tokens), draft.match_length
        accepted[a] = differing[0] if len(differing) else len(tokens)
    return Outcomes(drafted, accepted), matches


def lookup_first(lookup: Outcomes, matches: Int32, drafter: Outcomes) -> Outcomes:
    """Blocks of lookup where it found a match, and of the drafter elsewhere."""
    found = matches > 0
    return Outcomes(
        np.where(found, lookup.drafted, drafter.drafted), np.where(found, lookup.accepted, drafter.accepted)
    )

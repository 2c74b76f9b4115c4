"""The engine contract: what crosses the border between the orchestrator and an engine, whatever the engine is.

Symbols (dspark-spec): R requests in the step, T tokens, D draft tokens, A committed tokens, gamma block size,
K kept draft candidates a position, V vocabulary, d hidden size.

Every field is a numpy array, so that a step can travel as Triton tensors unchanged (`engines.codec`).
Nothing of size V or of the KV cache crosses this border.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TargetLimits:
    """What the compiled target can hold. Read from `engine.json`, fixed while it is loaded."""

    vocabulary_size: int
    hidden_size: int
    max_context: int                 # tokens of one sequence, prompt + output
    max_slots: int                   # sequences that may hold KV at once
    kv_block_size: int               # tokens of one KV block
    kv_blocks: int                   # blocks in the pool; admission reserves from these
    max_draft_tokens: int            # largest draft_count of a request in one step
    spare_tokens: int                # tokens beyond the committed ones that a step may write into a slot


@dataclass(frozen=True)
class DrafterLimits:
    """What the compiled drafter can do. Read from its `engine.json`."""

    vocabulary_size: int
    feature_size: int                # width of one feature row (d after fc + hidden_norm)
    block_size: int                  # gamma
    candidates: int                  # K
    max_slots: int
    window: int                      # context rows a block attends to, the last W before the anchor
    has_confidence: bool
    can_couple: bool = False         # drafts by the target's noise where a step says so; engines of old cannot


@dataclass(frozen=True)
class SamplingArrays:
    """Sampling settings of the R requests of one step, one row a request.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off.
    """

    temperature: Float32             # [R]
    top_k: Int32                     # [R]
    top_p: Float32                   # [R]
    min_p: Float32                   # [R]
    repetition_penalty: Float32      # [R]


@dataclass(frozen=True)
class TargetStep:
    """One step of the target: prefill chunks and verifications of several requests together.

    Request r brings `token_counts[r]` tokens, which start at position `positions[r]` of its slot. Whatever the slot
    held from that position on is void (that is how rejected drafts are rolled back); `positions[r] == 0` starts the
    slot afresh. The last `draft_counts[r]` of its tokens are drafts; the one before them is the anchor (or the last
    prompt token). With `samples[r]` false nothing is sampled (a prefill chunk that is not the last one).
    """

    slots: Int32                     # [R]
    positions: Int32                 # [R] tokens committed in the slot before this step
    token_counts: Int32              # [R] >= 1
    draft_counts: Int32              # [R] < token_counts
    samples: Bool                    # [R]
    wants_features: Bool             # [R] return the committed tokens' features
    wants_log_probs: Bool            # [R]
    tokens: Int32                    # [T]
    draft_ids: Int32                 # [D, K] candidates of p^d at each draft position; id -1 pads
    draft_probs: Float32             # [D, K] their probabilities, exactly those that were drawn from; 0 pads
    sampling: SamplingArrays
    uniforms: Float32                # [R, gamma + 1] in [0, 1): one a draft position, the last for the token after
    noise_keys: Int32                # [R, gamma + 1] noise of the positions after the anchor, as 32 bits
    coupled: Bool                    # [R] tokens are chosen by the noise, drafts accepted where they equal the choice
    released: Int32                  # [F] slots whose sequence ended since the last step: their blocks are free


@dataclass(frozen=True)
class TargetResult:
    """What a target step decided (dspark-spec, section 6)."""

    accepted: Int32                  # [R] accepted draft tokens
    next_tokens: Int32               # [R] the token after them: correction or bonus; -1 where samples is false
    feature_counts: Int32            # [R] rows of `features`: token_counts - draft_counts + accepted, or 0
    features: Float32                # [A, feature_size] of the committed tokens, request after request
    log_probs: Float32               # [R, gamma + 1] model's own log p (unfiltered) of accepted + next; NaN pads


@dataclass(frozen=True)
class DrafterStep:
    """One step of the drafter: append context features to slots, then draft a block for some of them.

    Request r appends `context_counts[r]` feature rows; after that its slot holds exactly the rows of positions
    0..positions[r]-1 (the last W of them), and the anchor sits at `positions[r]`. A step whose first appended row is
    position 0 starts the slot afresh. With `drafts[r]` false only the context is appended.
    """

    slots: Int32                     # [R]
    anchors: Int32                   # [R] x_0
    positions: Int32                 # [R] position of the anchor = committed tokens of the sequence
    context_counts: Int32            # [R] new feature rows, the last ones before the anchor
    drafts: Bool                     # [R]
    context: Float32                 # [A, feature_size]
    temperatures: Float32            # [R] 0 drafts greedily
    uniforms: Float32                # [R, gamma] in [0, 1)
    noise_keys: Int32                # [R, gamma] noise of the positions after the anchor, as 32 bits
    coupled: Bool                    # [R] drafts are chosen by the noise instead of the uniforms


@dataclass(frozen=True)
class DrafterResult:
    """The drafted blocks (dspark-spec, section 2); rows of requests with `drafts` false are void."""

    tokens: Int32                    # [R, gamma]
    confidence_logits: Float32       # [R, gamma] NaN where the drafter has no confidence head
    draft_ids: Int32                 # [R, gamma, K] distinct within a position
    draft_probs: Float32             # [R, gamma, K] sums to 1 a position


class TargetEngine(Protocol):
    """A loaded target. Not thread-safe: one caller, one step at a time."""

    limits: TargetLimits

    def step(self, step: TargetStep) -> TargetResult:
        """Run one step. Raises EngineError when the step contradicts the limits or the runtime fails."""

    def close(self) -> None: ...


class DrafterEngine(Protocol):
    """A loaded drafter. Not thread-safe."""

    limits: DrafterLimits

    def step(self, step: DrafterStep) -> DrafterResult:
        """Run one step. Raises EngineError when the step contradicts the limits or the runtime fails."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class EngineFolder:
    """Where a built engine lies: `target/`, `drafter/` (each engine.* + engine.json) and `tokenizer/`."""

    root: Path

    @property
    def target(self) -> Path:
        return self.root / "target"

    @property
    def drafter(self) -> Path:
        return self.root / "drafter"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

"""What a target step decides once its logits are there, whatever engine computed them (dspark-spec, section 6)."""

from __future__ import annotations

import numpy as np

from dspark.engines.contract import Float32, Int32, TargetLimits, TargetResult, TargetStep
from dspark.engines.rows import begins
from dspark.engines.selection import Selection, committed_features
from dspark.verification import SamplingSettings, log_probs_of, verify_block, verify_block_coupled


class SlotTokens:
    """The tokens of every slot, which the repetition penalty looks at, and how many of them are committed."""

    def __init__(self, limits: TargetLimits) -> None:
        self.committed = np.zeros(limits.max_slots, np.int32)
        self._tokens = np.zeros((limits.max_slots, limits.max_context + limits.spare_tokens), np.int32)
        self._hidden_size = limits.hidden_size

    def remember(self, step: TargetStep) -> None:
        """Write the step's tokens to their slots; what follows `positions` there is void."""
        self.committed[step.slots] = step.positions
        first = begins(step.token_counts)
        for r, slot in enumerate(step.slots):
            start = step.positions[r]
            self._tokens[slot, start : start + step.token_counts[r]] = step.tokens[first[r] : first[r + 1]]

    def decide(self, step: TargetStep, selection: Selection, logits: Float32, features: Float32) -> TargetResult:
        """Accept a prefix of every request's drafts; keep the committed tokens' features.

        logits [selected, V] and features [selected, d] are those of `selection`; the step has been remembered.
        """
        accepted = np.zeros(step.slots.size, np.int32)
        next_tokens = np.full(step.slots.size, -1, np.int32)
        log_probs = np.full(step.uniforms.shape, np.nan, np.float32)
        first_logit, first_draft = begins(selection.logit_counts), begins(step.draft_counts)
        for r in np.flatnonzero(step.samples):
            own = logits[first_logit[r] : first_logit[r + 1]]
            distributions = slice(first_draft[r], first_draft[r + 1])
            end = step.positions[r] + step.token_counts[r]
            history, drafts = np.split(self._tokens[step.slots[r], :end], [end - step.draft_counts[r]])
            sampling = SamplingSettings.row(step.sampling, r)
            if step.coupled[r]:
                verdict = verify_block_coupled(own, drafts, sampling, history, step.noise_keys[r])
            else:
                p_draft = step.draft_ids[distributions], step.draft_probs[distributions]
                verdict = verify_block(own, drafts, *p_draft, sampling, history, step.uniforms[r])
            accepted[r], next_tokens[r] = verdict.accepted, verdict.next_token
            if step.wants_log_probs[r]:
                emitted = np.append(drafts[: verdict.accepted], next_tokens[r])
                log_probs[r, : emitted.size] = log_probs_of(own[: emitted.size], emitted)
        committed = step.token_counts - step.draft_counts + accepted
        self.committed[step.slots] = step.positions + committed
        feature_counts = np.where(step.wants_features, committed, 0).astype(np.int32)
        kept = committed_features(features, selection, feature_counts)
        return TargetResult(accepted, next_tokens, feature_counts, kept, log_probs)

    def nothing(self, step: TargetStep) -> TargetResult:
        """The result of a step that only releases slots."""
        none: Int32 = np.zeros(0, np.int32)
        features = np.zeros((0, self._hidden_size), np.float32)
        return TargetResult(none, none, none, features, np.zeros(step.uniforms.shape, np.float32))

"""The drafter's sequential head and the sampling of a block, unrolled into the network (dspark-spec, 2 and 6).

`models.heads` and `models.block_sampling` are the same in torch. Probabilities are computed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tensorrt_llm.functional import (
    Tensor,
    cast,
    concat,
    constant,
    cumsum,
    embedding,
    exp,
    gather,
    gt,
    minimum,
    select,
    sigmoid,
    split,
    sum,
    tanh,
    topk,
    where,
)
from tensorrt_llm.layers import ColumnLinear, Embedding
from tensorrt_llm.module import Module

from dspark_build.models.drafter_config import DrafterConfig


@dataclass(frozen=True)
class DraftInputs:
    """What a block is drawn with: anchors [B] int32, temperatures [B] and uniforms [B, gamma] float32."""

    anchors: Tensor
    temperatures: Tensor
    uniforms: Tensor


@dataclass(frozen=True)
class DraftOutputs:
    """Drafted blocks: tokens [B, gamma], candidates and probabilities [B, gamma, K], confidence [B, gamma] if any."""

    tokens: Tensor
    draft_ids: Tensor
    draft_probs: Tensor
    confidence_logits: Tensor | None


class DraftHead(Module):
    """lm_head, Markov head and confidence head; parameter names are those of `models.drafter`."""

    def __init__(
        self, config: DrafterConfig, dtype: str, candidates: int, target_ids: npt.NDArray[np.int64] | None
    ) -> None:
        """target_ids [Vd]: the tokens that columns of the logits stand for, or None where they are the same."""
        super().__init__()
        self.config, self.candidates, self.target_ids = config, candidates, target_ids
        hidden, rank = config.model.hidden_size, config.markov_rank
        self.lm_head = ColumnLinear(hidden, config.draft_vocabulary_size, bias=False, dtype=dtype)
        if rank:
            self.markov_w1 = Embedding(config.model.vocabulary_size, rank, dtype=dtype)
            self.markov_w2 = ColumnLinear(rank, config.draft_vocabulary_size, bias=False, dtype=dtype)
        if config.markov_head_type == "gated":
            self.gate_proj = ColumnLinear(hidden + rank, rank, bias=True, dtype=dtype)
        if config.markov_head_type == "rnn":
            self.joint_proj = ColumnLinear(2 * rank + hidden, 3 * rank, bias=True, dtype=dtype)
        if config.confidence_head:
            extra = rank if config.confidence_with_markov else 0
            self.proj = ColumnLinear(hidden + extra, 1, bias=True, dtype=dtype)

    def forward(self, hidden: Tensor, inputs: DraftInputs) -> DraftOutputs:
        """hidden [B, gamma, d]: h of the block rows."""
        base_logits: Tensor = self.lm_head(hidden)
        previous, state = inputs.anchors, None
        sampled: list[tuple[Tensor, Tensor, Tensor]] = []
        confidences = []
        for k in range(self.config.block_size):
            own = select(hidden, 1, k)
            logits = select(base_logits, 1, k)
            embedded: Tensor | None = self.markov_w1(previous) if self.config.markov_rank else None
            if embedded is not None:
                latent, state = self._latent(own, embedded, state)
                logits = logits + self.markov_w2(latent)
            if self.config.confidence_head:
                confidences.append(self._confidence(own, embedded))
            token, ids, probabilities = self._draw(logits, inputs.temperatures, select(inputs.uniforms, 1, k))
            sampled.append((token, ids, probabilities))
            previous = token.view([-1])
        return DraftOutputs(
            concat([token for token, _, _ in sampled], dim=1),
            concat([ids.unsqueeze(1) for _, ids, _ in sampled], dim=1),
            concat([probabilities.unsqueeze(1) for _, _, probabilities in sampled], dim=1),
            concat(confidences, dim=1) if confidences else None,
        )

    def _latent(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Latent [B, r] and the next state from h_k [B, d] and W1[x_{k-1}] [B, r]."""
        if self.config.markov_head_type == "vanilla":
            return embedded, None
        if self.config.markov_head_type == "gated":
            return sigmoid(self.gate_proj(concat([hidden, embedded], dim=1))) * embedded, None
        before = embedded * 0.0 if state is None else state
        joint = self.joint_proj(concat([before, embedded, hidden], dim=1))
        gate, candidate, output = split(joint, self.config.markov_rank, dim=1)
        keep = sigmoid(gate)
        return tanh(output), keep * before + (1.0 - keep) * tanh(candidate)

    def _confidence(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """Logit of c_k, [B, 1]."""
        if self.config.confidence_with_markov and embedded is not None:
            hidden = concat([hidden, embedded], dim=1)
        return cast(self.proj(hidden), "float32")

    def _draw(self, logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Token [B, 1], candidates and p^d [B, K], of logits [B, Vd]; temperature 0 puts all on the first."""
        count = self.candidates
        # TensorRT's own layer rather than TensorRT-LLM's plugin: its values come in falling order.
        values, columns = topk(cast(logits, "float32"), count, 1, prefer_plugin=False)
        ids = columns
        if self.target_ids is not None:
            table = constant(np.ascontiguousarray(self.target_ids.astype(np.int32)[:, None]))
            ids = embedding(columns, table).view([-1, count])
        temperature = temperatures.unsqueeze(1)
        sampling = gt(temperature, 0.0)
        largest, _ = topk(values, 1, 1, prefer_plugin=False)
        weights = exp((values - largest) / where(sampling, temperature, 1.0))
        first = constant(np.eye(1, count, dtype=np.float32))
        probabilities = where(sampling, weights / sum(weights, 1, keepdim=True), first)
        passed = count - _count(gt(cumsum(probabilities, 1, prefer_plugin=False), uniforms.unsqueeze(1)))
        place = minimum(passed, _count(gt(probabilities, 0.0)) - 1)
        return gather(ids, 1, place), ids, probabilities


def _count(mask: Tensor) -> Tensor:
    """How many are true, [B, 1] int32."""
    return sum(cast(mask, "int32"), 1, keepdim=True)

"""An autoregressive drafter in the style of EAGLE-3: the baseline that reads its own features, one step a token.

One decoder layer of the target's block type. Its row for token x_{j+1} reads W_in [norm(embed(x_{j+1})) ; norm(g_j)],
where g_j = fc(taps at j) as long as the target has read position j and the layer's own output of the row before
otherwise, and predicts x_{j+2}. A row looks at the context rows before its anchor's, at its anchor's and at the earlier
ones of its block. It is trained as it drafts (training-time test): gamma steps, each on the features of the last.
This is a baseline to measure against; it is evaluated by replay and not served.

Axes: N sequences, A blocks a sequence, C context rows, gamma steps, H heads in G groups of K key heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from dspark.errors import ConfigurationError
from torch import Tensor, nn

from dspark_build.models.config import ModelConfig
from dspark_build.models.contract import Blocks
from dspark_build.models.layers import Attend, DecoderLayer, RMSNorm, RotaryEmbedding


@dataclass(frozen=True)
class EagleConfig:
    """Dimensions of one drafter. Raises ConfigurationError naming the field that does not fit."""

    model: ModelConfig               # of its one layer; d and V are the target's
    target_layers: int
    target_layer_ids: tuple[int, ...]  # taps: i is the output of decoder layer i, -1 the embedding output
    block_size: int                  # gamma: steps a round
    markov_rank: ClassVar[int] = 0   # a step reads its predecessor itself
    confidence_head: ClassVar[bool] = False

    def __post_init__(self) -> None:
        taps = self.target_layer_ids
        if self.block_size < 1:
            raise ConfigurationError(f"block_size must be at least 1, not {self.block_size}")
        if not taps or list(taps) != sorted(set(taps)) or taps[0] < -1 or taps[-1] >= self.target_layers:
            raise ConfigurationError(
                f"target_layer_ids must be distinct, rising and from -1 to {self.target_layers - 1}, not {list(taps)}"
            )


class EagleDrafter(nn.Module):
    """The drafter of one target. `embed_tokens` and `lm_head` are frozen copies of the target's."""

    d2t = None                       # it drafts from all of V

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        model, size = config.model, config.model.hidden_size
        self.embed_tokens = nn.Embedding(model.vocabulary_size, size).requires_grad_(False)
        self.lm_head = nn.Linear(size, model.vocabulary_size, bias=False).requires_grad_(False)
        self.fc = nn.Linear(len(config.target_layer_ids) * size, size, bias=False)
        self.token_norm = RMSNorm(size, model.norm_epsilon)
        self.feature_norm = RMSNorm(size, model.norm_epsilon)
        self.input_proj = nn.Linear(2 * size, size, bias=False)
        self.layer = DecoderLayer(model)
        self.norm = RMSNorm(size, model.norm_epsilon)
        self.rotary = RotaryEmbedding(model)

    def block_hidden(self, blocks: Blocks) -> Tensor:
        """h [N, A, gamma, d] after the final norm, teacher-forced in tokens and on its own features.

        The context's keys and values serve all blocks; then come gamma steps, each over all blocks at once.
        """
        rows = self.input_rows(blocks.context_tokens[:, 1:], self.fc(blocks.taps))
        positions = torch.arange(1, rows.shape[1] + 1, device=rows.device)[None]
        context = self.layer.self_attn.keys_values(self.layer.input_layernorm(rows), self.rotary(positions, rows.dtype))
        gamma, anchors = self.config.block_size, blocks.anchor_positions
        may_look = blocks.mask[:, ::gamma, : rows.shape[1]]
        attention = _BlockAttention(context, may_look, self.config.model.kv_heads)
        # The anchor's row is the last of its context: its keys and values are there already.
        output = rows.gather(1, (anchors - 1)[..., None].expand(-1, -1, rows.shape[-1]))
        outputs = []
        for k in range(gamma):
            if k:
                output = self.input_rows(blocks.previous[..., k], output)
            rotation = self.rotary(anchors + k, output.dtype)
            output = self.layer(output, rotation, attention.of_context if k == 0 else attention.of_step)
            outputs.append(output)
        return self.norm(torch.stack(outputs, -2))

    def input_rows(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Rows [..., d] of x_{j+1} [...] and the features [..., d] at j."""
        embedded = self.token_norm(self.embed_tokens(tokens))
        return self.input_proj(torch.cat([embedded, self.feature_norm(features)], -1))

    def latents(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Zero-width: there is no sequential head."""
        return hidden[..., :0]

    def head_logits(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Logits [..., V] of h [..., d], which has read x_{k-1} already."""
        return self.lm_head(hidden)

    def confidence_logits(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """NaN [...]: there is no confidence head."""
        return torch.full_like(hidden[..., 0], float("nan"))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The same ids: all of V can be drafted."""
        return draft_ids


class _BlockAttention:
    """Attention of the blocks' steps, which remembers the steps that were taken.

    context is K and V [N, C, K, D]; may_look [N, A, C] is True where a block sees a context row.
    """

    def __init__(self, context: tuple[Tensor, Tensor], may_look: Tensor, kv_heads: int) -> None:
        self._keys, self._values = context
        self._forbidden = ~may_look[:, None, None]
        self._kv_heads = kv_heads
        self._own_keys: list[Tensor] = []
        self._own_values: list[Tensor] = []

    @property
    def of_context(self) -> Attend:
        return lambda queries, keys, values: self._attend(queries)

    def of_step(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._own_keys.append(keys)
        self._own_values.append(values)
        return self._attend(queries)

    def _attend(self, queries: Tensor) -> Tensor:
        """[N, A, H, D] -> [N, A, H, D]."""
        grouped = queries.unflatten(2, (self._kv_heads, -1)) * queries.shape[-1] ** -0.5
        scores = torch.einsum("nakgd,nckd->nkgac", grouped, self._keys).masked_fill(self._forbidden, float("-inf"))
        if self._own_keys:
            own = torch.einsum("nakgd,naskd->nkgas", grouped, torch.stack(self._own_keys, 2))
            scores = torch.cat([scores, own], -1)
        weights = scores.float().softmax(-1).to(queries.dtype)
        rows = self._keys.shape[1]
        attended = torch.einsum("nkgac,nckd->nakgd", weights[..., :rows], self._values)
        if self._own_keys:
            own_values = torch.stack(self._own_values, 2)
            attended = attended + torch.einsum("nkgas,naskd->nakgd", weights[..., rows:], own_values)
        return attended.flatten(2, 3)

"""The DSpark drafter: a parallel backbone over the block and a sequential head (dspark-spec, section 2).

Axes: N sequences (or requests R), C context rows, Q block rows (gamma for one block, blocks * gamma in training),
Vd tokens that can be drafted: all V, or those that `d2t` selects. Tokens are the target's ids throughout; only columns
of logits are draft ids. Parameter names are those of the published checkpoints, so `state_dict()` is the checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark_build.models.block_sampling import DraftBlock, sample_block
from dspark_build.models.contract import Blocks
from dspark_build.models.coupling import Noise
from dspark_build.models.drafter_config import DrafterConfig
from dspark_build.models.heads import HEADS, ConfidenceHead
from dspark_build.models.layers import Attend, DecoderLayer, RMSNorm, RotaryEmbedding

KeysValues = tuple[Tensor, Tensor]   # of one layer, [N, C, K, D] each


class Drafter(nn.Module):
    """The drafter of one target. `embed_tokens` and `lm_head` are frozen copies of the target's, or of its rows."""

    d2t: Tensor | None               # [Vd] int64, target id = draft id + d2t[draft id]; None: they are the same

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        model = config.model
        self.embed_tokens = nn.Embedding(model.vocabulary_size, model.hidden_size).requires_grad_(False)
        self.lm_head = nn.Linear(model.hidden_size, config.draft_vocabulary_size, bias=False).requires_grad_(False)
        self.fc = nn.Linear(config.tap_size, model.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(model.hidden_size, model.norm_epsilon)
        self.layers = nn.ModuleList(DecoderLayer(model) for _ in range(model.layers))
        self.norm = RMSNorm(model.hidden_size, model.norm_epsilon)
        self.rotary = RotaryEmbedding(model)
        if config.markov_rank:
            self.markov_head = HEADS[config.markov_head_type](
                model.vocabulary_size, config.draft_vocabulary_size, config.markov_rank, model.hidden_size
            )
        reduced = config.reduced_vocabulary
        self.register_buffer("d2t", None if reduced is None else torch.zeros(reduced, dtype=torch.int64))
        if config.confidence_head:
            extra = config.markov_rank if config.confidence_with_markov else 0
            self.confidence_head = ConfidenceHead(model.hidden_size, extra)

    @property
    def draft_vocabulary_size(self) -> int:
        return self.config.draft_vocabulary_size

    def draft_vocabulary(self) -> Tensor:
        """The target ids [Vd] that can be drafted, rising: column v of the logits stands for token ids[v]."""
        return self.target_ids(torch.arange(self.draft_vocabulary_size, device=self.lm_head.weight.device))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The tokens [...] that columns `draft_ids` [...] of the logits stand for."""
        return draft_ids if self.d2t is None else draft_ids + self.d2t[draft_ids]

    def context_features(self, taps: Tensor) -> Tensor:
        """H_ctx [..., d] = hidden_norm(fc(taps)); taps [..., m * d] are the target's tapped layers, concatenated."""
        return self.hidden_norm(self.fc(taps))

    def block_embeddings(self, anchors: Tensor) -> Tensor:
        """Block inputs [..., gamma, d]: the anchors' [...] embeddings, then gamma - 1 times the mask token's."""
        masks = torch.full_like(anchors, self.config.mask_token_id)
        return self.embed_tokens(torch.stack([anchors] + [masks] * (self.config.block_size - 1), -1))

    def block_positions(self, positions: Tensor) -> Tensor:
        """Positions p..p+gamma-1 [..., gamma] of blocks whose anchors sit at `positions` [...]."""
        return positions.unsqueeze(-1) + torch.arange(self.config.block_size, device=positions.device)

    def context_keys_values(self, features: Tensor, positions: Tensor) -> list[KeysValues]:
        """K and V of every layer, [..., C, K, D], for H_ctx rows `features` [..., C, d] at `positions` [..., C].

        Context rows skip `input_layernorm`; k-norm and RoPE apply to them as to block rows.
        """
        rotation = self.rotary(positions, features.dtype)
        return [layer.self_attn.keys_values(features, rotation) for layer in self.layers]

    def backbone(
        self,
        block_embeds: Tensor,
        positions: Tensor,
        context_features: Tensor,
        mask: Tensor,
        context_positions: Tensor | None = None,
    ) -> Tensor:
        """h [N, Q, d] of block rows, one or many blocks a sequence in one pass.

        block_embeds [N, Q, d], positions [N, Q], context_features [N, C, d]; mask [N or 1, Q or 1, C + Q] is True where
        a block row may look: context rows before its anchor and its own block. Context rows sit at 0..C-1 unless
        `context_positions` [N, C] says otherwise.
        """
        if context_positions is None:
            context_positions = torch.arange(context_features.shape[1], device=context_features.device)[None]
        context = self.context_keys_values(context_features, context_positions)
        if mask.shape[1] > 1:
            mask = mask.repeat(1, self.config.model.heads // self.config.model.kv_heads, 1)
        return self._backbone_over(block_embeds, positions, context, mask)

    def _backbone_over(
        self, block_embeds: Tensor, positions: Tensor, context: list[KeysValues], mask: Tensor
    ) -> Tensor:
        """`backbone` over context K and V that exist already; mask [N or 1, (heads / kv_heads) * Q or 1, C + Q]."""
        rotation = self.rotary(positions, block_embeds.dtype)
        x = block_embeds
        for layer, keys_values in zip(self.layers, context, strict=True):
            x = layer(x, rotation, _attend_with(keys_values, mask.unsqueeze(1), self.config.model.kv_heads))
        return self.norm(x)

    def block_hidden(self, blocks: Blocks) -> Tensor:
        """h [N, A, gamma, d] of all blocks in one pass; of the tokens it reads the anchors alone."""
        embeddings = self.block_embeddings(blocks.previous[..., 0])
        hidden = self.backbone(
            embeddings.flatten(1, 2),
            self.block_positions(blocks.anchor_positions).flatten(1),
            self.context_features(blocks.taps),
            blocks.mask,
        )
        return hidden.view_as(embeddings)

    def latents(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Teacher-forced latents [..., gamma, r] of h [..., gamma, d] and x_{k-1} [..., gamma] (the anchor first).

        B = latents W2; zero-width without a sequential head.
        """
        if not self.config.markov_rank:
            return hidden[..., :0]
        embedded = self.markov_head.markov_w1(previous_tokens)
        state = self.markov_head.start(hidden[..., 0, :])
        rows = []
        for k in range(hidden.shape[-2]):
            latent, state = self.markov_head.latent(hidden[..., k, :], embedded[..., k, :], state)
            rows.append(latent)
        return torch.stack(rows, -2)

    def head_logits(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Teacher-forced logits U_k + B_k [..., gamma, Vd] of h [..., gamma, d] and x_{k-1} [..., gamma]."""
        logits = self.lm_head(hidden)
        if self.config.markov_rank:
            logits = logits + self.markov_head.bias(self.latents(hidden, previous_tokens))
        return logits

    def confidence_logits(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Logits of c_k [...] of h_k [..., d] and x_{k-1} [...]; NaN without a confidence head."""
        if not self.config.confidence_head:
            return torch.full_like(hidden[..., 0], float("nan"))
        if self.config.confidence_with_markov:
            hidden = torch.cat([hidden, self.markov_head.markov_w1(previous_tokens)], -1)
        return self.confidence_head(hidden)

    def start_head(self, hidden: Tensor) -> Tensor | None:
        """State of the sequential head before the first position; hidden is h_1 [R, d]."""
        return self.markov_head.start(hidden) if self.config.markov_rank else None

    def head_step(
        self, hidden: Tensor, base_logits: Tensor, previous_tokens: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One position of the head: U_k + B_k [R, Vd], the logit of c_k [R] and the next state.

        hidden is h_k [R, d], base_logits U_k [R, Vd], previous_tokens x_{k-1} [R].
        """
        confidence = self.confidence_logits(hidden, previous_tokens)
        if not self.config.markov_rank:
            return base_logits, confidence, None
        embedded = self.markov_head.markov_w1(previous_tokens)
        latent, state = self.markov_head.latent(hidden, embedded, state)
        return base_logits + self.markov_head.bias(latent), confidence, state

    def draft(
        self,
        anchors: Tensor,
        positions: Tensor,
        context: list[KeysValues],
        context_mask: Tensor,
        temperatures: Tensor,
        uniforms: Tensor,
        noise: Noise | None = None,
    ) -> DraftBlock:
        """Draft one block a request: anchors, positions, temperatures [R], uniforms [R, gamma] in [0, 1).

        context is K and V of every layer, [R, C, K, D] each; context_mask [R, C] is True for rows that hold a token.
        """
        in_block = torch.ones_like(uniforms, dtype=torch.bool)
        mask = torch.cat([context_mask, in_block], -1).unsqueeze(1)
        hidden = self._backbone_over(self.block_embeddings(anchors), self.block_positions(positions), context, mask)
        return sample_block(self, hidden, self.lm_head(hidden), anchors, temperatures, uniforms, noise)


def _attend_with(context: KeysValues, mask: Tensor, kv_heads: int) -> Attend:
    """Attention of block rows to `context` and to each other.

    The queries that share a K/V head are folded into one longer row of queries [N, K, (H/K) * Q, D], so that K and V
    are not repeated; the mask [N or 1, 1, (H/K) * Q or 1, C + Q] follows that order.
    """

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        all_keys = torch.cat([context[0], keys], 1).transpose(1, 2)
        all_values = torch.cat([context[1], values], 1).transpose(1, 2)
        folded = queries.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(folded.flatten(2, 3), all_keys, all_values, attn_mask=mask)
        return attended.unflatten(2, folded.shape[2:4]).permute(0, 3, 1, 2, 4).flatten(2, 3)

    return attend

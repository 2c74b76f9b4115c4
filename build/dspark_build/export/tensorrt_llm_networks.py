"""Target and drafter as TensorRT-LLM modules, over the tensors that `dspark.engines.tensorrt_llm_tensors` names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from dspark.engines.tensorrt_llm_tensors import PagedShape
from tensorrt_llm.functional import AttentionMaskType, Tensor, cast, concat, gt, index_select, where
from tensorrt_llm.layers import ColumnLinear, Embedding, RmsNorm
from tensorrt_llm.module import Module, ModuleList

from dspark_build.export.tensorrt_llm_head import DraftHead, DraftInputs, DraftOutputs
from dspark_build.export.tensorrt_llm_layers import AttentionTensors, DecoderLayer, Rotary
from dspark_build.models.config import ModelConfig
from dspark_build.models.drafter_config import DrafterConfig
from dspark_build.models.target import EMBEDDING_TAP


class TargetNetwork(Module):
    """The target with the drafter's `fc` and `hidden_norm` as its tail: features leave d wide (dspark-spec, 2)."""

    def __init__(self, config: ModelConfig, shape: PagedShape, tap_ids: Sequence[int]) -> None:
        super().__init__()
        self.config, self.paged, self.tap_ids = config, shape, tuple(tap_ids)
        hidden, dtype = config.hidden_size, shape.dtype
        self.embed_tokens = Embedding(config.vocabulary_size, hidden, dtype=dtype)
        self.layers = ModuleList(
            [DecoderLayer(config, shape, layer, AttentionMaskType.causal) for layer in range(config.layers)]
        )
        self.norm = RmsNorm(hidden, eps=config.norm_epsilon, dtype=dtype)
        self.lm_head = ColumnLinear(hidden, config.vocabulary_size, bias=False, dtype=dtype)
        self.fc = ColumnLinear(len(self.tap_ids) * hidden, hidden, bias=False, dtype=dtype)
        self.hidden_norm = RmsNorm(hidden, eps=config.norm_epsilon, dtype=dtype)

    def forward(
        self, input_ids: Tensor, logit_rows: Tensor, feature_rows: Tensor, attention: AttentionTensors
    ) -> tuple[Tensor, Tensor]:
        """input_ids [T], logit_rows [N], feature_rows [A] -> logits [N, V] and features [A, d]."""
        rotary = Rotary.of(self.config, self.paged.capacity)
        x: Tensor = self.embed_tokens(input_ids)
        outputs = {EMBEDDING_TAP: x}
        for index in range(self.config.layers):
            layer = self.layers[index]
            x = layer(x, layer.input_layernorm(x), attention, rotary)
            outputs[index] = x
        logits: Tensor = self.lm_head(self.norm(index_select(x, 0, logit_rows)))
        taps = concat([index_select(outputs[tap], 0, feature_rows) for tap in self.tap_ids], dim=1)
        features: Tensor = self.hidden_norm(self.fc(taps))
        return cast(logits, "float32"), cast(features, "float32")


class DrafterNetwork(Module):
    """The drafter over packed rows of context and of blocks.

    Attention of a context row reads its feature, of a block row the row itself; context rows give no output.
    """

    def __init__(
        self,
        config: DrafterConfig,
        shape: PagedShape,
        candidates: int,
        target_ids: npt.NDArray[np.int64] | None,
    ) -> None:
        super().__init__()
        self.config, self.paged = config, shape
        model, dtype = config.model, shape.dtype
        self.embed_tokens = Embedding(model.vocabulary_size, model.hidden_size, dtype=dtype)
        self.layers = ModuleList(
            [DecoderLayer(model, shape, layer, AttentionMaskType.padding) for layer in range(model.layers)]
        )
        self.norm = RmsNorm(model.hidden_size, eps=model.norm_epsilon, dtype=dtype)
        self.head = DraftHead(config, dtype, candidates, target_ids)

    def forward(
        self,
        input_ids: Tensor,
        is_context: Tensor,
        features: Tensor,
        block_rows: Tensor,
        inputs: DraftInputs,
        attention: AttentionTensors,
    ) -> DraftOutputs:
        """input_ids, is_context [T], features [T, d], block_rows [B, gamma] -> drafted blocks."""
        model = self.config.model
        rotary = Rotary.of(model, self.paged.capacity)
        from_context = gt(is_context, 0).unsqueeze(1)
        own_features = cast(features, self.paged.dtype)
        x: Tensor = self.embed_tokens(input_ids)
        for index in range(model.layers):
            layer = self.layers[index]
            x = layer(x, where(from_context, own_features, layer.input_layernorm(x)), attention, rotary)
        rows = index_select(x, 0, block_rows.view([-1]))
        hidden: Tensor = self.norm(rows)
        drafted: DraftOutputs = self.head(
            hidden.view([-1, self.config.block_size, model.hidden_size]), inputs
        )
        return drafted

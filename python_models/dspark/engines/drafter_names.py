"""Names of the tensors of a drafter's two graphs, whatever runs them.

`context` turns feature rows into K and V rows; `block` reads the rings of K and V in place and drafts.
"""

from __future__ import annotations

CONTEXT_INPUTS = ("features", "positions")
BLOCK_INPUTS = ("slots", "anchors", "positions", "context_lengths", "temperatures", "uniforms")
COUPLING_INPUTS = ("noise_keys", "coupled")     # after BLOCK_INPUTS, of a graph that can couple
BLOCK_OUTPUTS = ("tokens", "confidence_logits", "draft_ids", "draft_probs")


def pool_names(layers: int) -> list[str]:
    """Names of the rings' tensors: outputs of `context`, and the last inputs of `block`."""
    return [f"{kind}.{layer}" for layer in range(layers) for kind in ("keys", "values")]

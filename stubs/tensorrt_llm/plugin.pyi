"""Which plugins a network uses. A dataclass in 1.0, a pydantic model later: attributes are set in both.

Read in a source of 0.x, and as what functional.py of 1.x reads of them; the class of 1.x itself is unconfirmed.
"""

class PluginConfig:
    gpt_attention_plugin: str | None
    gemm_plugin: str | None
    context_fmha: bool
    paged_kv_cache: bool | None
    remove_input_padding: bool
    tokens_per_block: int
    use_paged_context_fmha: bool

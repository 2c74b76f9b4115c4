"""Which plugins a network uses. A dataclass in 1.0, a pydantic model later: attributes are set in both.

Read as a pydantic model in a source of the last lines with engines, of unknown release.
"""

class PluginConfig:
    gpt_attention_plugin: str | None
    gemm_plugin: str | None
    context_fmha: bool
    paged_kv_cache: bool | None
    remove_input_padding: bool
    tokens_per_block: int
    use_paged_context_fmha: bool
    use_fp8_context_fmha: bool

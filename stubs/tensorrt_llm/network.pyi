"""The network under construction, and the guard that makes it the one that modules add to."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

from tensorrt_llm.parameter import Parameter
from tensorrt_llm.plugin import PluginConfig

class Network:
    @property
    def plugin_config(self) -> PluginConfig: ...
    def set_named_parameters(self, named_parameters: Iterable[tuple[str, Parameter]]) -> None: ...

def net_guard(network: Network) -> AbstractContextManager[None]: ...

"""TensorRT-LLM as this project uses it, in torch on the CPU: networks are graphs that are evaluated when a run is fed.

The attention plugin is written after the plugin's own source: paged KV behind raw pointers, RoPE from the lengths, the
context phase only. It stands in for the real one in tests; that both agree has been checked by nobody.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu

DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}
ENUMS = {"INT32": "int32", "INT64": "int64", "FLOAT": "float32"}


class FakeTensorRtLlm:
    """The fake modules, and what was asked of them."""

    def __init__(self, version: str = "1.1.0") -> None:
        self.version = version
        self.gpu = FakeGpu(version="10.13.3.9")
        self.networks: list[Network] = []
        self.attentions: list[dict[str, Any]] = []       # arguments of every gpt_attention

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeTensorRtLlm:
        self.gpu.install(monkeypatch)
        real = metadata.version
        monkeypatch.setattr(metadata, "version", lambda name: self.version if name == "tensorrt_llm" else real(name))
        modules = _modules(self)
        for name, members in modules.items():
            module = ModuleType(name)
            vars(module).update(members)
            module.__spec__ = ModuleSpec(name, None)     # torch asks for it
            monkeypatch.setitem(sys.modules, name, module)
        # Modules that were imported over another fake hold its classes.
        for name in ("describe", "head", "layers", "networks", "weights"):
            monkeypatch.delitem(sys.modules, f"dspark_build.export.tensorrt_llm_{name}", raising=False)
        return self


class Network:
    def __init__(self) -> None:
        self.plugin_config = SimpleNamespace()
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.parameters: dict[str, Any] = {}

    def set_named_parameters(self, named_parameters: Any) -> None:
        self.parameters = dict(named_parameters)


class Tensor:
    """A node: an input by name, or a function of other nodes."""

    current: Network | None = None

    def __init__(self, name=None, dtype=None, shape=None, dim_range=None, *, function=None, arguments=()) -> None:
        self.name, self.dtype, self.shape, self.dim_range = name, dtype, shape, dim_range
        self.function, self.arguments = function, arguments
        if function is None:
            assert Tensor.current is not None, "an input outside of net_guard"
            Tensor.current.inputs[name] = self

    def mark_output(self, name=None, dtype=None) -> None:
        Tensor.current.outputs[name] = cast(self, dtype)

    def value(self, known: dict[int, Any]) -> Any:
        if id(self) not in known:
            known[id(self)] = self.function(*(a.value(known) if isinstance(a, Tensor) else a for a in self.arguments))
        return known[id(self)]

    def view(self, shape, zero_is_placeholder=True): return node(lambda x: x.reshape(shape), self)
    def cast(self, dtype): return cast(self, dtype)
    def unsqueeze(self, dim): return node(lambda x: x.unsqueeze(dim), self)
    def __add__(self, b): return node(torch.add, self, b)
    __radd__ = __add__
    def __sub__(self, b): return node(torch.sub, self, b)
    def __rsub__(self, b): return node(lambda x: b - x, self)
    def __mul__(self, b): return node(torch.mul, self, b)
    __rmul__ = __mul__
    def __truediv__(self, b): return node(torch.div, self, b)


def node(function: Callable[..., Any], *arguments: Any) -> Tensor:
    return Tensor(function=function, arguments=arguments)


def cast(input, dtype):
    output = node(lambda x: x.to(DTYPES[dtype]), input)
    output.dtype = dtype
    return output


class Parameter:
    def __init__(self, value=None, shape=None, dtype=None) -> None:
        self.shape, self.dtype, self._value = tuple(shape), dtype, None

    @property
    def value(self) -> Tensor:
        return node(lambda: self._value)

    @value.setter
    def value(self, v) -> None:
        assert tuple(v.shape) == self.shape and v.dtype == DTYPES[self.dtype]
        self._value = v


class Module:
    def __init__(self) -> None: ...
    def __call__(self, *args, **kwargs): return self.forward(*args, **kwargs)

    def named_parameters(self, prefix="", recurse=True):
        for name, member in vars(self).items():
            if isinstance(member, Parameter):
                yield prefix + name, member
            elif isinstance(member, Module):
                yield from member.named_parameters(f"{prefix}{name}.")


class ModuleList(Module):
    def __init__(self, modules) -> None:
        for index, module in enumerate(modules):
            setattr(self, str(index), module)

    def __getitem__(self, idx): return getattr(self, str(idx))


class Linear(Module):
    def __init__(self, in_features, out_features, bias=True, dtype=None, tp_group=None, tp_size=1, gather_output=True):
        self.weight = Parameter(shape=(out_features, in_features), dtype=dtype)
        self.bias = Parameter(shape=(out_features,), dtype=dtype) if bias else None

    def forward(self, x):
        bias = () if self.bias is None else (self.bias.value,)
        return node(torch.nn.functional.linear, x, self.weight.value, *bias)


class Embedding(Module):
    def __init__(self, num_embeddings, embedding_dim, dtype=None) -> None:
        self.weight = Parameter(shape=(num_embeddings, embedding_dim), dtype=dtype)

    def forward(self, x): return embedding(x, self.weight.value)


class RmsNorm(Module):
    def __init__(self, normalized_shape, num_groups=1, eps=1e-06, elementwise_affine=True, dtype=None) -> None:
        self.weight, self.eps = Parameter(shape=(normalized_shape,), dtype=dtype), eps

    def forward(self, x):
        return node(lambda x, w: torch.nn.functional.rms_norm(x, w.shape, w, self.eps), x, self.weight.value)


class GatedMLP(Module):
    def __init__(self, hidden_size, ffn_hidden_size, hidden_act, bias=True, dtype=None) -> None:
        assert hidden_act == "silu"
        self.fc = Linear(hidden_size, ffn_hidden_size, bias, dtype)
        self.gate = Linear(hidden_size, ffn_hidden_size, bias, dtype)
        self.proj = Linear(ffn_hidden_size, hidden_size, bias, dtype)

    def forward(self, x): return self.proj(node(torch.nn.functional.silu, self.fc(x)) * self.gate(x))


class Builder:
    fake: FakeTensorRtLlm

    def create_network(self):
        self.fake.networks.append(Network())
        return self.fake.networks[-1]

    def create_builder_config(self, precision, strongly_typed=True): return SimpleNamespace(precision=precision)
    def build_engine(self, network, builder_config): return b"network %d" % self.fake.networks.index(network)


@contextlib.contextmanager
def net_guard(network):
    Tensor.current = network
    yield
    Tensor.current = None


def embedding(input, weight): return node(lambda i, w: w[i.long()], input, weight)
def index_select(input, dim, index): return node(lambda x, i: x.index_select(dim, i.long()), input, index)
def gather(input, dim, indices): return node(lambda x, i: x.gather(dim, i.long()), input, indices)
def sum(input, dim, keepdim=False): return node(lambda x: x.sum(dim, keepdim=keepdim, dtype=x.dtype), input)
def where(condition, left, right): return node(torch.where, condition, left, right)


def split(tensor, split_size_or_sections, dim=0):
    whole = node(lambda x: x.split(split_size_or_sections, dim), tensor)
    return _Parts(whole, split_size_or_sections)


class _Parts:
    """As many parts as are unpacked: a graph does not know its sizes."""

    def __init__(self, whole, sizes) -> None:
        self.whole, self.count = whole, len(sizes) if isinstance(sizes, list) else 3

    def __iter__(self): return (node(lambda x, i=i: x[i], self.whole) for i in range(self.count))


def topk(input, k, dim, largest=True, prefer_plugin=True):
    assert not prefer_plugin and largest
    both = node(lambda x: x.topk(k, dim), input)
    return node(lambda b: b.values, both), node(lambda b: b.indices.to(torch.int32), both)


def cumsum(input, dim, prefer_plugin=True):
    assert not prefer_plugin
    return node(lambda x: x.cumsum(dim), input)


def tables(num_pos, dim, theta=10000.0):
    inverse = (1.0 / theta ** (np.arange(0, dim, 2) / dim)).astype(np.float32)
    angles = np.arange(num_pos, dtype=np.float32)[:, None] * inverse
    return inverse, np.stack([np.cos(angles), np.sin(angles)], -1).reshape(1, -1)


def _modules(fake: FakeTensorRtLlm) -> dict[str, dict[str, Any]]:
    masks = SimpleNamespace(padding="padding", causal="causal", bidirectional="bidirectional")

    def gpt_attention(**arguments):
        fake.attentions.append(arguments)
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        settings = {name: value for name, value in arguments.items() if name not in tensors}
        settings["block_size"] = Tensor.current.plugin_config.tokens_per_block
        names = list(tensors)
        run = lambda *values: attend(fake.gpu, settings, dict(zip(names, values, strict=True)))  # noqa: E731
        return node(run, *tensors.values()), None

    functional = {
        **{f.__name__: f for f in (cast, cumsum, embedding, gather, index_select, split, sum, topk, where)},
        "gpt_attention": gpt_attention,
        "AttentionMaskType": masks,
        "PositionEmbeddingType": SimpleNamespace(rope_gpt_neox="neox"),
        "RopeEmbeddingUtils": SimpleNamespace(create_sinusoidal_positions_for_attention_plugin=tables),
        "Tensor": Tensor,
        "concat": lambda inputs, dim=0: node(lambda *xs: torch.cat(xs, dim), *inputs),
        "constant": lambda ndarray: node(lambda: torch.from_numpy(ndarray)),
        "exp": lambda input: node(torch.exp, input),
        "gt": lambda left, right: node(torch.gt, left, right),
        "minimum": lambda left, right: node(torch.minimum, left, right),
        "select": lambda input, dim, index: node(lambda x: x.select(dim, index), input),
        "sigmoid": lambda input: node(torch.sigmoid, input),
        "tanh": lambda input: node(torch.tanh, input),
    }
    layers = {
        "ColumnLinear": Linear, "RowLinear": Linear, "Embedding": Embedding, "RmsNorm": RmsNorm, "GatedMLP": GatedMLP,
    }
    builder = type("Builder", (Builder,), {"fake": fake})
    return {
        "tensorrt_llm": {"__version__": fake.version},
        "tensorrt_llm.functional": functional,
        "tensorrt_llm.layers": layers,
        "tensorrt_llm.module": {"Module": Module, "ModuleList": ModuleList},
        "tensorrt_llm.network": {"Network": Network, "net_guard": net_guard},
        "tensorrt_llm.builder": {"Builder": builder},
        "tensorrt": _tensorrt(fake),
    }


def _tensorrt(fake: FakeTensorRtLlm) -> dict[str, Any]:
    """Loading an engine gives the network that was described; running it reads and writes raw memory."""

    class Context:
        def __init__(self, network) -> None:
            self.network, self.shapes, self.addresses = network, {}, {}

        def set_input_shape(self, name, shape):
            self.shapes[name] = shape
            ranges = list(self.network.inputs[name].dim_range.values())
            limits = [(r[0], r[0]) if isinstance(r[0], int) else (r[0][0], r[0][2]) for r in ranges]
            return all(least <= size <= most for size, (least, most) in zip(shape, limits, strict=True))

        def set_tensor_address(self, name, memory):
            self.addresses[name] = memory
            return True

        def execute_async_v3(self, stream_handle):
            known = {}
            for name, tensor in self.network.inputs.items():
                dtype = np.dtype(tensor.dtype)
                count = int(np.prod(self.shapes[name])) * dtype.itemsize
                address = self.addresses[name]
                if not name.startswith("host_"):
                    fake.gpu.within(address, count)
                raw = np.frombuffer(ctypes.string_at(address, count), dtype).reshape(self.shapes[name])
                known[id(tensor)] = torch.from_numpy(raw.copy())
            for name, tensor in self.network.outputs.items():
                output = np.ascontiguousarray(tensor.value(known).numpy())
                ctypes.memmove(fake.gpu.within(self.addresses[name], output.nbytes), output.ctypes.data, output.nbytes)
            return True

    class Engine:
        def __init__(self, network) -> None:
            self.network, self.names = network, [*network.inputs, *network.outputs]

        num_io_tensors = property(lambda self: len(self.names))
        def get_tensor_name(self, index): return self.names[index]
        def create_execution_context(self): return Context(self.network)

        def get_tensor_dtype(self, name):
            dtype = {**self.network.inputs, **self.network.outputs}[name].dtype
            return next((enum for enum, text in ENUMS.items() if text == dtype), "FLOAT")

    class Runtime:
        def __init__(self, logger) -> None: ...
        def deserialize_cuda_engine(self, serialized_engine):
            kind, number = serialized_engine.split()
            return Engine(fake.networks[int(number)]) if kind == b"network" else None

    class Logger:
        Severity = SimpleNamespace(WARNING=2)
        def __init__(self, min_severity) -> None: ...

    kinds = {kind: kind for kind in ("FLOAT", "HALF", "BF16", "INT32", "INT64", "BOOL")}
    version = fake.gpu.version
    return {"__version__": version, "Logger": Logger, "Runtime": Runtime, "DataType": SimpleNamespace(**kinds)}


def attend(gpu: FakeGpu, settings: dict[str, Any], values: dict[str, torch.Tensor]) -> torch.Tensor:
    """The plugin in its context phase; K and V in the pool are float32, as the networks of the tests are."""
    heads, kv_heads, size = settings["num_heads"], settings["num_kv_heads"], settings["hidden_size_per_head"]
    lengths, news = values["sequence_length"].tolist(), values["context_lengths"].tolist()
    assert values["host_context_lengths"].tolist() == news and values["qkv"].shape[0] == np.sum(news)
    assert values["host_past_key_value_lengths"].tolist() == lengths       # in this phase: with the new rows
    assert not values["host_request_types"].any()
    offsets = values["kv_cache_block_offsets"][0]
    assert torch.equal(offsets, values["host_kv_cache_block_offsets"][0])
    pool, layer = values["host_kv_cache_pool_mapping"][settings["layer_idx"]].tolist()
    block_size = settings["block_size"]
    block_bytes = block_size * kv_heads * size * 4
    start = int(values["host_kv_cache_pool_pointers"][pool, 0]) + layer * 2 * block_bytes
    table = values["rotary_cos_sin"].reshape(-1, size // 2, 2)

    def block(offset: int) -> np.ndarray:
        address = gpu.within(start + offset * block_bytes, block_bytes)
        raw = (ctypes.c_float * (block_bytes // 4)).from_address(address)
        return np.frombuffer(raw, np.float32).reshape(kv_heads, block_size, size)

    def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = (part.repeat(1, 2)[:, None] for part in table[positions].unbind(-1))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    outputs, begin = [], 0
    for row, (length, new) in enumerate(zip(lengths, news, strict=True)):
        rows = values["qkv"][begin : begin + new]
        begin += new
        positions = torch.arange(length - new, length)
        queries, keys, fresh = (
            part.unflatten(1, (-1, size)) for part in rows.split([heads * size, kv_heads * size, kv_heads * size], 1)
        )
        for place, k, v in zip(positions.tolist(), turned(keys, positions), fresh, strict=True):
            for of, vector in enumerate((k, v)):
                block(int(offsets[row, of, place // block_size]))[:, place % block_size] = vector.numpy()
        held = [
            np.concatenate([block(int(o)) for o in offsets[row, of, : -(-length // block_size)]], 1)[:, :length]
            for of in (0, 1)
        ]
        mask = torch.ones(new, length, dtype=torch.bool)
        if settings["mask_type"] != "padding":           # `bidirectional` too: in this phase it is causal
            mask = torch.arange(length)[None] <= positions[:, None]
        attended = torch.nn.functional.scaled_dot_product_attention(
            turned(queries, positions).transpose(0, 1), *(torch.from_numpy(h.copy()) for h in held),
            attn_mask=mask, enable_gqa=True,
        )
        outputs.append(attended.transpose(0, 1).flatten(1))
    return torch.cat(outputs)

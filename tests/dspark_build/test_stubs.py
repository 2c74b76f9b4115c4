"""What our type stubs say of TensorRT and of the CUDA binding is true of the real modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

STUBS = Path(__file__).parents[2] / "stubs"
# TensorRT-RTX stands for TensorRT, whose own libraries are not on the public package index.
MODULES = {
    "tensorrt/__init__.pyi": "tensorrt_rtx",
    "tensorrt_rtx/__init__.pyi": "tensorrt_rtx",
    "cuda/bindings/runtime.pyi": "cuda.bindings.runtime",
}


def members(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Dotted names of everything that a stub declares."""
    def walk(prefix: str, body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield prefix + node.name, node
                yield from walk(f"{prefix}{node.name}.", node.body)
            elif isinstance(node, ast.FunctionDef):
                yield prefix + node.name, node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield prefix + node.target.id, node

    yield from walk("", ast.parse(path.read_text()).body)


def found(module: ModuleType, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def documented_arguments(function: Any) -> list[str]:
    """Argument names of a compiled function's overloads, as the first lines of its documentation give them."""
    signatures = re.findall(r"^(?:\d+\. )?\w+\((.*)\)", function.__doc__ or "", re.MULTILINE)
    names = (re.findall(r"(?:^|, )(?:[\w.]+ )*(\w+)(?=[:=,]|$)", re.sub(r"\[[^\]]*\]", "", s)) for s in signatures)
    return [name for overload in names for name in overload]


@pytest.mark.parametrize("stub", MODULES)
def test_every_name_and_argument_of_a_stub_exists(stub: str) -> None:
    module = pytest.importorskip(MODULES[stub])
    wrong = []
    for name, node in members(STUBS / stub):
        if name == "Dims.__iter__":              # iterable by way of __getitem__
            continue
        try:
            real = found(module, name)
        except AttributeError:
            wrong.append(name)
            continue
        if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("__")):
            known = documented_arguments(real)
            given = [argument.arg for argument in node.args.args if argument.arg != "self"]
            wrong += [f"{name}({argument})" for argument in given if argument not in known]
    assert wrong == []


def test_a_misspelt_name_would_be_noticed() -> None:
    module = pytest.importorskip("tensorrt_rtx")
    assert "pool_size" in documented_arguments(module.IBuilderConfig.set_memory_pool_limit)
    assert "size" not in documented_arguments(module.IBuilderConfig.set_memory_pool_limit)
    with pytest.raises(AttributeError):
        found(module, "IExecutionContext.execute_asynch")

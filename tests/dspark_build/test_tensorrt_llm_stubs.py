"""A call that the stubs of TensorRT-LLM do not allow cannot pass the type check.

The package itself is not installed here, so that the stubs say the truth is the word of whoever read its sources.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPORT = ROOT / "build/dspark_build/export"
# name: (module, what is written there, what is written instead, what mypy must say)
MUTATIONS = {
    "misspelt_argument": ("layers", "mask_type=self.mask", "mask_typ=self.mask", 'argument "mask_typ"'),
    "missing_argument": ("layers", "            layer_idx=self.layer,\n", "", 'Missing named argument "layer_idx"'),
    "number_for_a_tensor": ("layers", "rotary_inv_freq=rotary.inv_freq", "rotary_inv_freq=1.0", "incompatible type"),
    "unknown_layer_argument": ("networks", "eps=model.norm_epsilon", "epsilon=model.norm_epsilon", '"epsilon"'),
    "unknown_plugin": ("describe", "plugins.gemm_plugin", "plugins.gem_plugin", 'no attribute "gem_plugin"'),
    "unknown_operator": ("head", "    cumsum,\n", "    cumulate,\n", 'no attribute "cumulate"'),
    "wrong_operator_argument": ("head", "count, 1, prefer_plugin", "count, 1, plugin", '"plugin"'),
    "unknown_builder_argument": ("describe", "precision=shape.dtype", "dtype=shape.dtype", '"dtype"'),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says of one mutated copy a mutation, and of copies without any."""
    folder = tmp_path_factory.mktemp("mutated")
    for name, (module, there, instead, _) in MUTATIONS.items():
        source = (EXPORT / f"tensorrt_llm_{module}.py").read_text()
        assert source.count(there) >= 1
        (folder / f"{name}.py").write_text(source.replace(there, instead, 1))
        (folder / f"{module}_as_it_is.py").write_text(source)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, sorted(folder.glob("*.py")))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_call_fails_the_type_check(name: str, verdicts: str) -> None:
    said = [line for line in verdicts.splitlines() if f"{name}.py:" in line and "error" in line]
    assert any(MUTATIONS[name][3] in line for line in said), verdicts


def test_the_modules_as_they_are_pass(verdicts: str) -> None:
    assert "_as_it_is.py" not in verdicts

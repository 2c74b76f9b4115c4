"""`dspark doctor --plan`: memory of Qwen3-4B and its published drafter against numbers computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dspark.errors import ConfigurationError
from dspark_client.cli import app
from dspark_client.doctor.gpus import MEBIBYTES, gpu_memory_gib
from dspark_client.doctor.plan import GIB, USABLE, Plan, Precision, plan
from typer.testing import CliRunner

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560,
    "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": True,
}
DRAFTER = QWEN3_4B | {
    "architectures": ["Qwen3DSparkModel"], "num_hidden_layers": 5, "tie_word_embeddings": False, "block_size": 7,
    "num_target_layers": 36, "target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669, "markov_rank": 256,
    "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
}
EMBEDDING = 388_956_160              # 151936 · 2560
LAYER_MATRICES = 100_925_440         # 2560 · (2 · 32 + 2 · 8) · 128 + 3 · 2560 · 9728
LAYER_NORMS = 5_376                  # 2 · 2560 + 2 · 128
TARGET = 4_022_468_096               # EMBEDDING + 36 · (LAYER_MATRICES + LAYER_NORMS) + 2560
DRAFTER_SIZE = 1_393_133_569         # 2 embeddings, 5 layers, fc 5 · 2560², 2 norms, W1 and W2 2 · 151936 · 256, 2817
KV_OF_A_TOKEN = 147_456              # 2 · 36 · 8 · 128 · 2 bytes
RING_OF_A_TOKEN = 20_480             # 2 · 5 · 8 · 128 · 2 bytes
WINDOW, GAMMA = 256, 7


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return folder(tmp_path / "qwen3-4b", QWEN3_4B)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return folder(tmp_path / "dspark_qwen3_4b_block7", DRAFTER)


def folder(path: Path, config: dict[str, object]) -> Path:
    """A model's folder without weights."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def needs(found: Plan) -> dict[str, int]:
    return {need.what: need.bytes for need in found.needs}


def planned(
    target: Path, drafter: Path | None, gib: float = 80.0, slots: int = 32, context: int = 4096,
    precision: Precision = Precision.bf16,
) -> Plan:
    return plan(target, drafter, "a GPU", gib, context, slots, precision)


def test_parameters_are_those_of_the_published_models(target: Path, drafter: Path) -> None:
    found = planned(target, drafter)
    assert found.parameters == TARGET == EMBEDDING + 36 * (LAYER_MATRICES + LAYER_NORMS) + 2560
    assert found.drafter_parameters == DRAFTER_SIZE


def test_weights_in_16_bits_take_two_bytes_a_parameter(target: Path, drafter: Path) -> None:
    for precision in (Precision.fp16, Precision.bf16):
        found = needs(planned(target, drafter, precision=precision))
        assert found["target weights"] == 2 * TARGET
        assert found["drafter weights"] == 2 * DRAFTER_SIZE
        assert found["copy of the shared head"] == 2 * EMBEDDING


def test_weights_in_8_bits_take_one_byte_in_matrices_and_two_a_row(target: Path) -> None:
    rows = 36 * (32 * 128 + 2 * 8 * 128 + 2560 + 2 * 9728 + 2560)      # q, k and v, o, gate and up, down
    kept = EMBEDDING + 36 * LAYER_NORMS + 2560
    for precision in (Precision.int8, Precision.fp8):
        found = needs(planned(target, None, precision=precision))
        assert found["target weights"] == 36 * LAYER_MATRICES + 2 * rows + 2 * kept
        assert found["copy of the shared head"] == EMBEDDING


def test_caches_are_one_straight_piece_a_slot(target: Path, drafter: Path) -> None:
    found = needs(planned(target, drafter, slots=10, context=1000))
    assert found["target KV"] == 10 * (1000 + GAMMA) * KV_OF_A_TOKEN
    assert found["drafter context KV"] == 10 * WINDOW * RING_OF_A_TOKEN
    assert needs(planned(target, drafter, slots=10, context=100))["drafter context KV"] == 10 * 100 * RING_OF_A_TOKEN


def test_estimates_are_those_of_the_documented_formula(target: Path, drafter: Path) -> None:
    found = needs(planned(target, drafter, slots=2, context=1000))
    rows = 2 * (GAMMA + 1) + 128
    assert found["activations"] == rows * (2 * 2560 + (32 + 16) * 128 + 2 * 9728) * 4
    assert found["attention scores"] == rows * 32 * (1000 + GAMMA + 1) * 4
    assert found["target logits"] == 2 * (GAMMA + 1) * 151936 * 8
    assert found["drafter logits"] == 2 * GAMMA * 151936 * 8
    assert found["CUDA contexts and workspaces"] == 3 * GIB


def test_the_largest_number_of_slots_fits_and_one_more_does_not(target: Path, drafter: Path) -> None:
    for gib in (24.0, 80.0):
        most = planned(target, drafter, gib).largest_slots
        fitting, beyond = (planned(target, drafter, gib, slots=slots) for slots in (most, most + 1))
        assert fitting.fits and fitting.total_bytes == sum(needs(fitting).values()) <= gib * GIB * USABLE
        assert not beyond.fits and most > 0


def test_weights_that_do_not_fit_leave_no_slot(target: Path, drafter: Path) -> None:
    found = planned(target, drafter, gib=8.0)
    assert not found.fits and found.largest_slots == 0


def test_a_target_alone_needs_nothing_for_a_drafter(target: Path) -> None:
    found = planned(target, None)
    assert not any("drafter" in name for name in needs(found)) and found.drafter_parameters == 0
    assert needs(found)["target KV"] == 32 * 4096 * KV_OF_A_TOKEN


def test_a_context_beyond_the_models_is_refused(target: Path) -> None:
    with pytest.raises(ConfigurationError, match="40960"):
        planned(target, None, context=40961)


def test_gpus_are_found_by_name_however_it_is_written() -> None:
    assert gpu_memory_gib("rtx 4090") == ("RTX4090", MEBIBYTES["RTX4090"] / 1024)
    with pytest.raises(ConfigurationError, match="--gpu-memory"):
        gpu_memory_gib("Voodoo2")


@pytest.mark.parametrize(("gpu", "status"), [(["--gpu", "H100"], 0), (["--gpu-memory", "12"], 1)])
def test_the_status_says_whether_it_fits(
    gpu: list[str], status: int, target: Path, drafter: Path, tmp_path: Path
) -> None:
    written = tmp_path / "plan.json"
    result = CliRunner().invoke(app, [
        "doctor", "--plan", str(target), "--drafter", str(drafter), *gpu, "--slots", "16", "--json", str(written),
    ])
    assert result.exit_code == status
    assert "slots of this context" in result.output
    assert json.loads(written.read_text())["fits"] is (status == 0)


@pytest.mark.parametrize("arguments", [["--gpu", "H100"], ["--plan", "x", "--gpu", "H100", "--gpu-memory", "8"]])
def test_options_that_contradict_each_other_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert isinstance(result.exception, ConfigurationError)

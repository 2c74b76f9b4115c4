"""The ONNX graph with explicit KV says what the paged engine says, so what the CPU shows holds for the GPU graph."""

import numpy as np
import onnxruntime
import pytest
from dspark.engines.engine_json import TargetRecord, read_record
from dspark.engines.paged_runner import PagedRunner, RaggedBatch
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.export.target_onnx import cache_names, export_target_onnx
from dspark_build.tiny import make_tiny_target

LAYERS, KV_HEADS, HEAD, VOCABULARY = 2, 2, 16, 320
TOLERANCE = 1e-4                     # logits whose sums run in another order


class PaddedSessions:
    """A linear KV cache a sequence, and padded steps through ONNX Runtime."""

    def __init__(self, path, sequences, capacity):
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.caches = {
            name: np.zeros((sequences, KV_HEADS, capacity, HEAD), np.float32) for name in cache_names("past", LAYERS)
        }
        self.capacity = capacity

    def step(self, positions, tokens):
        """Feed ragged token lists at `positions`; returns logits and features as ragged lists."""
        count, length = len(tokens), max(map(len, tokens))
        padded = np.zeros((count, length), np.int64)
        mask = np.zeros((count, 1, length, self.capacity + length), bool)
        for r, row in enumerate(tokens):
            padded[r, : len(row)] = row
            mask[r, 0, :, : positions[r]] = True
            mask[r, 0, :, self.capacity :] = np.tril(np.ones((length, length), bool))
        steps = np.arange(length)[None].repeat(count, 0)
        feed = {"tokens": padded, "positions": np.array(positions)[:, None] + steps, "logit_rows": steps, "mask": mask}
        logits, features, *new = self.session.run(None, feed | self.caches)
        for cache, fresh in zip(self.caches.values(), new, strict=True):
            for r, row in enumerate(tokens):
                cache[r, :, positions[r] : positions[r] + len(row)] = fresh[r, :, : len(row)]
        return [(logits[r, : len(row)], features[r, : len(row)]) for r, row in enumerate(tokens)]


@pytest.mark.parametrize("flavour", ["llama", "qwen3"])
def test_the_onnx_graph_agrees_with_the_paged_engine(tmp_path, flavour):
    target = make_tiny_target(tmp_path / "target", flavour)
    initial = initialise_drafter(target, target_layer_ids=[-1, 0, 1], start_layers=[1], mask_token_id=319)
    drafter = save_drafter_checkpoint(initial, tmp_path / "drafter", target)
    build_target(target, drafter, "fp32", tmp_path / "engine", TargetSizes(max_slots=3, kv_tokens=512))
    record = read_record(tmp_path / "engine", TargetRecord)
    paged = PagedRunner(tmp_path / "engine", record, record.rows)
    onnx = PaddedSessions(export_target_onnx(target, drafter, tmp_path / "onnx"), sequences=3, capacity=64)

    random, positions, worst = np.random.default_rng(3), np.zeros(3, np.int32), 0.0
    for counts in ([20, 1, 33], [1, 1, 1], [8, 3, 1], [5, 8, 8], [1, 8, 2]):
        tokens = [random.integers(0, VOCABULARY, count).astype(np.int32) for count in counts]
        batch = RaggedBatch(np.arange(3, dtype=np.int32), positions, np.array(counts, np.int32), np.concatenate(tokens))
        everything = np.arange(sum(counts), dtype=np.int32)
        outputs = paged.run(batch, everything, everything)
        for part, expected in zip(zip(*onnx.step(positions, tokens), strict=True), vars(outputs).values(), strict=True):
            worst = max(worst, np.abs(np.concatenate(part) - expected).max())
        # The next step starts anywhere in what was written: rejected drafts are rolled back.
        positions = (positions + random.integers(1, np.array(counts) + 1)).astype(np.int32)
    assert worst < TOLERANCE

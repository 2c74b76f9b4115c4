"""`dspark build --engine tensorrt_llm`: refused at once where it cannot work, and built again only after a change."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from dspark.engines.contract import DrafterLimits, EngineFolder, TargetLimits
from dspark.engines.engine_json import BuildFacts, write_record
from dspark.engines.tensorrt_llm_record import LlmPlanFacts, TensorRtLlmDrafterRecord, TensorRtLlmTargetRecord
from dspark.engines.tensorrt_llm_tensors import PagedShape
from dspark.errors import ConfigurationError
from dspark_build.export import tensorrt_llm_build
from dspark_client import build as build_verb
from dspark_client import evaluate

PLAN = LlmPlanFacts(tensorrt_llm="1.1.0", compute_capability="8.9", gpu="a GPU")
FACTS = BuildFacts("model", "a", "drafterhash0", "bf16", {"tensorrt_llm": "1.1.0"}, "a CPU")


def test_another_tensorrt_llm_is_refused_before_anything_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="tensorrt_llm is not installed"):
        build_verb.build_engine("no such checkpoint", "tensorrt_llm", None, False)
    monkeypatch.setattr(metadata, "version", lambda name: "1.3.0")
    with pytest.raises(ConfigurationError, match=r"1\.3\.0 has no TensorRT engine builder .*25\.12"):
        build_verb.build_engine("no such checkpoint", "tensorrt_llm", None, False)


def test_without_a_gpu_it_is_refused_before_anything_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_llm_build, "require_tensorrt_llm", lambda: "1.1.0")
    with pytest.raises(ConfigurationError, match=r"CUDA sees none|cuda-python"):
        build_verb.build_engine("no such checkpoint", "tensorrt_llm", None, False)


def test_a_folder_is_kept_for_the_same_version_and_gpu_only(tmp_path: Path) -> None:
    folder = EngineFolder(tmp_path)
    shape = PagedShape(2, 1, 8, "bfloat16", 64, 4, 100, 64, 2, 16)
    limits = TargetLimits(10, 8, 90, 2, 64, 4, 7, 7)
    drafter_limits = DrafterLimits(10, 8, 7, 4, 2, 90, True)
    folder.target.mkdir()
    folder.drafter.mkdir()
    write_record(folder.target, TensorRtLlmTargetRecord(limits, shape, (-1, 1), PLAN, FACTS))
    write_record(folder.drafter, TensorRtLlmDrafterRecord(drafter_limits, shape, "rnn", 9, PLAN, FACTS))
    assert build_verb._built_from(folder, PLAN) == (FACTS, FACTS)
    assert build_verb._built_from(folder, replace(PLAN, tensorrt_llm="1.2.1")) is None
    assert build_verb._built_from(folder, replace(PLAN, compute_capability="9.0")) is None
    assert build_verb._built_from(folder, None) is None
    assert evaluate._drafter_name(folder.drafter) == "rnn:drafterhash0"

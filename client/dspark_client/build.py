"""`dspark prepare` and `dspark build`: from a checkpoint to DSPARK_HOME/engines/NAME/ENGINE/{target,drafter,tokenizer}.

The one module of the client that imports torch, by way of dspark_build.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.engines.drafter_record import DrafterRecord
from dspark.engines.engine_json import BuildFacts, TargetRecord, read_record
from dspark.engines.tensorrt_llm_record import LlmPlanFacts, TensorRtLlmDrafterRecord, TensorRtLlmTargetRecord
from dspark.engines.tensorrt_record import PlanFacts, TensorRtDrafterRecord, TensorRtTargetRecord
from dspark.errors import ConfigurationError
from dspark.scheduling.calibration import CALIBRATION_FILE
from dspark_build.checkpoints.form import copy_tokenizer, new_folder
from dspark_build.checkpoints.prepare import prepare
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.export.drafter import build_drafter
from dspark_build.export.facts import build_facts
from dspark_build.export.target import build_target
from dspark_build.export.tensorrt_engine import build_tensorrt_drafter, build_tensorrt_target, plan_facts
from dspark_build.export.tensorrt_llm_build import (
    build_tensorrt_llm_drafter,
    build_tensorrt_llm_target,
    llm_build_facts,
    llm_plan_facts,
)
from dspark_build.models.config import ModelConfig
from dspark_build.progress import Progress, progress_bars
from rich.console import Console

from dspark_client import paths

TENSORRT = {"tensorrt": "fp16", "tensorrt-bf16": "bf16"}     # engine -> precision of its weights and caches
TENSORRT_LLM = {"tensorrt_llm": "bf16"}
UNTRAINED_TAPS = 5                   # as many as the published drafters tap, spread over the target's layers
UNTRAINED_LAYERS = 1


def prepare_checkpoint(source: str) -> Path:
    """The prepared checkpoint for a name, a Hugging Face folder or a hub name. Raises ConfigurationError."""
    with progress_bars() as progress:
        return prepare(source, paths.home(), progress)


def build_engine(source: str, engine: str, drafter: Path | None, allow_inexact: bool) -> Path:
    """Build what is not built from the same inputs yet; returns the engine folder. Raises ConfigurationError.

    Without `drafter` it is the one that this repository ships for the checkpoint, or else an untrained one.
    """
    console = Console()
    plan = _plan_facts(engine)                                   # without a GPU, say so before anything else
    with progress_bars() as progress:
        checkpoint = prepare(source, paths.home(), progress)
        drafter, notice = (drafter, "") if drafter else _drafter_for(checkpoint, progress)
    if notice:
        console.print(notice, markup=False)
    folder = paths.engine_folder(checkpoint.name, engine)
    facts = _facts(checkpoint, drafter, engine)
    if _built_from(folder, plan) == (facts, facts) and folder.tokenizer.is_dir():
        console.print(f"{folder.root} is built already", markup=False)
        return folder.root
    with progress_bars() as progress, new_folder(folder.root) as partial:
        parts = EngineFolder(partial)
        progress(f"building {engine} target", 0, 3)
        if plan is None:
            build_target(checkpoint, drafter, engine, parts.target, allow_inexact=allow_inexact)
        elif isinstance(plan, LlmPlanFacts):
            build_tensorrt_llm_target(checkpoint, drafter, TENSORRT_LLM[engine], parts.target)
        else:
            build_tensorrt_target(checkpoint, drafter, TENSORRT[engine], parts.target)
        progress(f"building {engine} target", 3, 3)
        progress(f"building {engine} drafter", 0, 1)
        if plan is None:
            build_drafter(drafter, checkpoint, engine, parts.drafter)
        elif isinstance(plan, LlmPlanFacts):
            build_tensorrt_llm_drafter(drafter, checkpoint, TENSORRT_LLM[engine], parts.drafter)
        else:
            build_tensorrt_drafter(drafter, checkpoint, TENSORRT[engine], parts.drafter)
        if (drafter / CALIBRATION_FILE).is_file():       # shipped with the drafter; `dspark calibrate` replaces it
            shutil.copyfile(drafter / CALIBRATION_FILE, parts.drafter / CALIBRATION_FILE)
        progress(f"building {engine} drafter", 1, 1)
        copy_tokenizer(checkpoint, parts.tokenizer)
    console.print(f"{folder.root} is ready", markup=False)
    return folder.root


def _drafter_for(checkpoint: Path, progress: Progress) -> tuple[Path, str]:
    """The drafter to build for a checkpoint, and what to say about it."""
    shipped = paths.REPOSITORY / "drafters" / checkpoint.name
    if (shipped / "config.json").is_file():
        return shipped, ""
    untrained = paths.home() / "drafters" / f"{checkpoint.name}-untrained"
    if not untrained.is_dir():
        progress("initialising a drafter", 0, 1)
        layers = ModelConfig.read(checkpoint).layers
        taps = sorted({round(1 + tap * (layers - 4) / (UNTRAINED_TAPS - 1)) for tap in range(UNTRAINED_TAPS)})
        model = initialise_drafter(
            checkpoint,
            target_layer_ids=[tap for tap in taps if 0 <= tap < layers] or [layers - 1],
            start_layers=range(layers - UNTRAINED_LAYERS, layers),
        )
        with new_folder(untrained) as partial:
            save_drafter_checkpoint(model, partial, checkpoint, notes={"training": "none"})
        progress("initialising a drafter", 1, 1)
    return untrained, f"no trained drafter for {checkpoint.name}: an untrained one is used, right in its text but slow"


def _facts(checkpoint: Path, drafter: Path, engine: str) -> BuildFacts:
    if not (drafter / "config.json").is_file():
        raise ConfigurationError(f"no drafter at {drafter}: config.json and model.safetensors are expected there")
    if engine in TENSORRT_LLM:
        return llm_build_facts(checkpoint, drafter, TENSORRT_LLM[engine])
    return build_facts(checkpoint, drafter, TENSORRT.get(engine, engine))


def _plan_facts(engine: str) -> PlanFacts | LlmPlanFacts | None:
    """What a GPU engine built here and now is tied to; None for a CPU engine."""
    if engine in TENSORRT_LLM:
        return llm_plan_facts()
    return plan_facts() if engine in TENSORRT else None


def _built_from(
    folder: EngineFolder, plan: PlanFacts | LlmPlanFacts | None
) -> tuple[BuildFacts, BuildFacts] | None:
    """What the target and the drafter in a folder were built from.

    None where one is missing, of another format, or a plan that this TensorRT or this GPU (`plan`) cannot load.
    """
    try:
        if plan is None:
            return read_record(folder.target, TargetRecord).facts, read_record(folder.drafter, DrafterRecord).facts
        if isinstance(plan, LlmPlanFacts):
            llm_target = read_record(folder.target, TensorRtLlmTargetRecord)
            llm_drafter = read_record(folder.drafter, TensorRtLlmDrafterRecord)
            return (llm_target.facts, llm_drafter.facts) if llm_target.plan == llm_drafter.plan == plan else None
        target = read_record(folder.target, TensorRtTargetRecord)
        drafter = read_record(folder.drafter, TensorRtDrafterRecord)
    except ConfigurationError:
        return None
    return (target.facts, drafter.facts) if target.plan == drafter.plan == plan else None

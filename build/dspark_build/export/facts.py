"""What an engine is built from, told in one place: `dspark build` compares it to skip what is built already."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from dspark.engines.engine_json import BuildFacts

from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.machine import cpu_model

TOOLS = ("openvino", "torch", "nncf", "numpy")


def build_facts(checkpoint: Path, drafter: Path | None, precision: str) -> BuildFacts:
    """The facts of an engine of `precision` for a target's and a drafter's checkpoint (if any), built here and now."""
    return BuildFacts(
        checkpoint=checkpoint.name,
        checkpoint_hash=checkpoint_hash(checkpoint),
        drafter_hash=checkpoint_hash(drafter) if drafter else "",
        precision=precision,
        tools={tool: version(tool) for tool in TOOLS},
        cpu=cpu_model(),
    )

"""Options that several verbs share: their types and their help."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from dspark.settings import ServingSettings

DEFAULT_POLICY = ServingSettings.policy
DEFAULT_GRPC = "127.0.0.1:8001"
LARGEST_SEED = 2**63 - 1             # every prompt adds a number of 32 bits of its own, within the model's 64


class Engine(str, Enum):
    """On a CPU, int8 weights (the fast default) or fp32 (the reference); on an NVIDIA GPU, TensorRT or TensorRT-LLM."""

    int8 = "int8"
    fp32 = "fp32"
    tensorrt = "tensorrt"
    tensorrt_bf16 = "tensorrt-bf16"
    tensorrt_llm = "tensorrt_llm"


class Verification(str, Enum):
    """Rules of acceptance; `dspark.settings.VERIFICATIONS`."""

    standard = "standard"
    coupled = "coupled"


EngineOption = Annotated[Engine, typer.Option(help="Precision of a CPU engine, or tensorrt… for an NVIDIA GPU.")]
CheckpointOption = Annotated[str, typer.Option(help="Name of the prepared checkpoint whose engine is used.")]
PolicyOption = Annotated[str, typer.Option(help=
    "How many drafts are verified: none, full, fixed:N, threshold:C or adaptive; +lookup adds prompt lookup."
)]
VerificationOption = Annotated[Verification, typer.Option(help=
    "coupled: sampled answers depend on prompt, settings and seed alone, not on drafts, schedule or load."
)]
AddressOption = Annotated[str, typer.Option(help="gRPC address of the server; if none listens there, one is started.")]
PromptsOption = Annotated[list[Path], typer.Option("--prompts", help="Files of JSON lines {id, domain, turns}.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Take at most so many prompts of each file.")]
MaxTokensOption = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
TemperatureOption = Annotated[float, typer.Option(min=0.0, help="0 is greedy.")]
ConcurrencyOption = Annotated[str, typer.Option(help="Requests in flight, such as 1,8,16.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result to this file too.")]
SeedOption = Annotated[int | None, typer.Option(min=0, help="The same seed gives the same answer.")]

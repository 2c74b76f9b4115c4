"""A real Triton server over a tiny random model: everything of a deployment, at a size that starts in seconds."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from dspark.engines.contract import EngineFolder
from dspark.settings import ServingSettings
from dspark_build.checkpoints.form import copy_tokenizer
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.export.drafter import DrafterSizes, build_drafter
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.tiny import make_tiny_target
from dspark_client.paths import REPOSITORY
from dspark_client.server import SupervisedServer, running_server
from dspark_client.transport import Connection

GAMMA, VOCABULARY, CONTEXT, SLOTS, QUEUE = 4, 320, 256, 8, 64


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> EngineFolder:
    """A built fp32 engine of a random model with an untrained drafter."""
    root = tmp_path_factory.mktemp("tiny")
    checkpoint = make_tiny_target(root / "checkpoint", vocabulary=VOCABULARY)
    drafter = save_drafter_checkpoint(
        initialise_drafter(
            checkpoint, target_layer_ids=[0, 1], start_layers=[1], block_size=GAMMA, mask_token_id=VOCABULARY - 1
        ),
        root / "drafter", checkpoint,
    )
    folder = EngineFolder(root / "engine")
    sizes = TargetSizes(max_context=CONTEXT, max_slots=SLOTS, kv_tokens=SLOTS * (CONTEXT + 64))
    build_target(checkpoint, drafter, "fp32", folder.target, sizes)
    build_drafter(drafter, checkpoint, "fp32", folder.drafter, DrafterSizes(max_slots=SLOTS, window=32))
    copy_tokenizer(checkpoint, folder.tokenizer)
    return folder


@pytest.fixture(scope="session")
def tiny_settings(tiny_engine: EngineFolder) -> ServingSettings:
    return ServingSettings(
        str(tiny_engine.root), policy="full", max_queue=QUEUE, max_slots=SLOTS, prefill_chunk=64, threads=1
    )


@pytest.fixture(scope="session")
def tiny_server(tiny_settings: ServingSettings) -> Iterator[SupervisedServer]:
    with running_server(tiny_settings, model_repository()) as server:
        yield server


@pytest.fixture
def connection(tiny_server: SupervisedServer) -> Iterator[Connection]:
    with Connection(tiny_server.grpc_address) as connection:
        yield connection


def model_repository() -> Path:
    return REPOSITORY / "model_repository"


def metrics(server: SupervisedServer) -> dict[str, float]:
    """The dspark_* metrics without labels, by name."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(dspark_\w+)(?:\{\})? ([-+.\de]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}

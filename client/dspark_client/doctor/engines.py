"""The built engines: whole, of this machine and these packages, measured and calibrated."""

from __future__ import annotations

from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.engines.engine_json import TargetRecord, engine_name, read_record
from dspark.engines.loading import read_drafter_limits, read_target_limits
from dspark.engines.machine import cpu_model
from dspark.errors import ConfigurationError
from dspark.scheduling import Calibration, ThroughputCurve

from dspark_client import paths
from dspark_client.doctor.findings import Finding, advised


def built_engines() -> list[EngineFolder]:
    """Every folder below DSPARK_HOME/engines that a build has left, finished or not."""
    return [EngineFolder(path) for path in sorted((paths.home() / "engines").glob("*/*")) if path.is_dir()]


def label(folder: EngineFolder) -> str:
    return f"{folder.root.parent.name}/{folder.root.name}"


def engine_findings(folder: EngineFolder, threads: int, versions: dict[str, str | None]) -> list[Finding]:
    """What is to be said of one engine; whether a server can start with it is `serving.py`'s to find."""
    about = label(folder)
    build = f"run 'dspark build --engine {folder.root.name}' again"
    try:
        target, drafter = read_target_limits(folder.target), read_drafter_limits(folder.drafter)
        engine = engine_name(folder.target)
    except ConfigurationError as error:
        return [advised(about, "not usable", str(error))]
    if not folder.tokenizer.is_dir():
        return [advised(about, "has no tokenizer", build)]
    gamma = min(target.max_draft_tokens, drafter.block_size)
    shape = f"{engine}, {target.max_slots} slots, context {target.max_context}, block {gamma}"
    findings = [Finding(about, f"{shape}, {_megabytes(folder.root):.0f} MB")]
    if engine == TargetRecord.engine:
        findings += _origin(about, folder, versions, build)
    return [*findings, _curve(about, folder, gamma, threads), _calibration(about, folder, gamma)]


def _origin(about: str, folder: EngineFolder, versions: dict[str, str | None], build: str) -> list[Finding]:
    try:
        record = read_record(folder.target, TargetRecord)
    except ConfigurationError as error:
        return [advised(about, "engine.json is not understood", str(error))]
    findings = []
    if record.facts.cpu != cpu_model():
        found = f"built and probed for exactness on {record.facts.cpu!r}, this is {cpu_model()!r}"
        findings.append(advised(about, found, build))
    if not record.exact:
        findings.append(advised(
            about, "its logits depend on the batch", "accept that near ties may differ from plain decoding, or use fp32"
        ))
    for tool, version in record.facts.tools.items():
        if versions.get(tool) not in (None, version):
            findings.append(advised(about, f"built with {tool} {version}, {versions[tool]} is installed", build))
    return findings


def _curve(about: str, folder: EngineFolder, gamma: int, threads: int) -> Finding:
    try:
        curve = ThroughputCurve.read(folder, gamma, threads)
    except ConfigurationError as error:
        return advised(f"{about} curve", "none for this engine on this machine, so no adaptive policy", str(error))
    if not curve.stable:
        again = f"run 'dspark profile --engine {folder.root.name}' again while the machine does nothing else"
        return advised(f"{about} curve", "was measured while times varied", again)
    return Finding(f"{about} curve", "measured here, of this build")


def _calibration(about: str, folder: EngineFolder, gamma: int) -> Finding:
    try:
        calibration = Calibration.read(folder.drafter, gamma)
    except ConfigurationError as error:
        return advised(f"{about} calibration", "does not fit, and keeps a server from starting", str(error))
    if calibration is None:
        command = f"run 'dspark calibrate --engine {folder.root.name} --prompts FILE' on prompts like those to come"
        return advised(f"{about} calibration", "none: confidence is taken as the drafter gives it", command)
    return Finding(f"{about} calibration", "of this drafter")


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6

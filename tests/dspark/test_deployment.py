"""Which combinations of policy, verification and engine are refused before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from dspark.deployment import check_policy
from dspark.engines.contract import DrafterLimits, EngineFolder, TargetLimits
from dspark.errors import ConfigurationError
from dspark.settings import ServingSettings

TARGET = TargetLimits(100, 8, 64, 4, 16, 16, 3, 4)
DRAFTER = DrafterLimits(100, 8, 3, 64, 4, 16, has_confidence=True, can_couple=True)


@pytest.fixture
def folder(tmp_path: Path) -> EngineFolder:
    found = EngineFolder(tmp_path)
    for part, limits in ((found.target, TARGET), (found.drafter, DRAFTER)):
        part.mkdir()
        record = {"format": 1, "engine": "any", "limits": dataclasses.asdict(limits)}
        (part / "engine.json").write_text(json.dumps(record))
    return found


def settings(folder: EngineFolder, **changes: object) -> ServingSettings:
    return ServingSettings(str(folder.root), allow_unprofiled=True, **changes)


@pytest.mark.parametrize("policy", ["adaptive:global", "adaptive:global+lookup"])
def test_the_retrospective_rule_is_for_coupled_verification_only(folder, policy):
    check_policy(settings(folder, policy=policy, verification="coupled"))
    with pytest.raises(ConfigurationError, match=r"biases sampled answers.*--verification coupled"):
        check_policy(settings(folder, policy=policy))


@pytest.mark.parametrize("verification", ["standard", "coupled"])
@pytest.mark.parametrize("policy", ["none", "full", "adaptive", "adaptive:stale+lookup"])
def test_all_other_rules_go_with_both(folder, policy, verification):
    check_policy(settings(folder, policy=policy, verification=verification))


def test_a_drafter_of_an_older_build_serves_the_standard_rule_only(folder):
    path = folder.drafter / "engine.json"
    record = json.loads(path.read_text())
    del record["limits"]["can_couple"]
    path.write_text(json.dumps(record))
    check_policy(settings(folder, policy="full"))
    with pytest.raises(ConfigurationError, match=r"older build.*run 'dspark build' again"):
        check_policy(settings(folder, policy="full", verification="coupled"))


def test_an_unknown_verification_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="'loose'; choose standard or coupled"):
        ServingSettings("", verification="loose")
    (tmp_path / "settings.json").write_text('{"engine_folder": "", "verification": "loose"}')
    with pytest.raises(ConfigurationError, match="'loose'"):
        ServingSettings.read(tmp_path / "settings.json")


def test_the_verification_survives_the_settings_file(tmp_path):
    ServingSettings("e", verification="coupled").write(tmp_path / "settings.json")
    assert ServingSettings.read(tmp_path / "settings.json").coupled

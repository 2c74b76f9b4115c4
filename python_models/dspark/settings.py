"""What a deployment can set: one frozen record that the three Triton models read (the file `DSPARK_SETTINGS` names)."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from dspark.errors import ConfigurationError

SETTINGS_VARIABLE = "DSPARK_SETTINGS"
VERIFICATIONS = ("standard", "coupled")
KINDS = {"str": str, "int": int, "bool": bool}


@dataclass(frozen=True)
class ServingSettings:
    """Settings of one server. Raises ConfigurationError for an unknown verification, in `read` also name or type."""

    engine_folder: str               # holds target/, drafter/, tokenizer/
    policy: str = "adaptive+lookup"  # none | full | fixed:N | threshold:C | adaptive[:RULE], each also with +lookup
    max_queue: int = 64              # requests waiting for a slot, beyond which UNAVAILABLE
    max_slots: int = 32              # sequences decoded together (at most the engine's own)
    prefill_chunk: int = 128         # prompt tokens in one step, all sequences together
    default_max_tokens: int = 256
    threads: int = 0                 # CPU threads of the target's engine; 0: all cores
    allow_unprofiled: bool = False   # serve an adaptive policy without a curve.json: everything is verified then
    online_costs: bool = True        # correct the profile by what served steps take
    diagnose: bool = False           # verify whole drafts but commit what the policy would: shows what trimming hides
    switchable_policies: bool = False    # requests may change the policy while no other is served: for benchmarks
    verification: str = "standard"   # or "coupled": a seed's answer depends neither on drafts nor on schedules

    def __post_init__(self) -> None:
        if self.verification not in VERIFICATIONS:
            raise ConfigurationError(f"verification is {self.verification!r}; choose {' or '.join(VERIFICATIONS)}")

    @property
    def coupled(self) -> bool:
        """Whether target and drafter choose by the same noise."""
        return self.verification == "coupled"

    @staticmethod
    def read(path: str | Path | None = None) -> ServingSettings:
        """Read the settings file: `path`, or the one that DSPARK_SETTINGS names."""
        name = path or os.environ.get(SETTINGS_VARIABLE)
        if not name:
            raise ConfigurationError(f"no settings: set {SETTINGS_VARIABLE} to a file, or start with 'dspark serve'")
        try:
            values = json.loads(Path(name).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"settings file {name} cannot be read: {error}") from error
        fields = {field.name: field for field in dataclasses.fields(ServingSettings)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            known = ", ".join(fields)
            raise ConfigurationError(f"settings file {name}: unknown setting {unknown[0]!r}; known: {known}")
        for key, value in values.items():
            expected = KINDS[str(fields[key].type)]
            if type(value) is not expected:
                raise ConfigurationError(f"settings file {name}: {key} must be {expected.__name__}, not {value!r}")
        if "engine_folder" not in values:
            raise ConfigurationError(f"settings file {name}: engine_folder is missing")
        return ServingSettings(**values)

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", "utf-8")

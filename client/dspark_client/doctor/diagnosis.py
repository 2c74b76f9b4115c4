"""All findings about this machine and one server that is to run on it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from dspark.settings import ServingSettings

from dspark_client.doctor.engines import built_engines, engine_findings
from dspark_client.doctor.findings import Finding, Level
from dspark_client.doctor.machine import Machine, machine_findings, read_machine
from dspark_client.doctor.serving import serving_findings
from dspark_client.doctor.versions import installed_versions, version_findings
from dspark_client.ports import Ports

WIDTH, INDENT = 110, " " * 5
MARKS = {Level.good: "ok  ", Level.advice: "!   ", Level.stop: "STOP"}


@dataclass(frozen=True)
class Diagnosis:
    """The result, in the names of its JSON."""

    can_serve: bool
    machine: Machine
    versions: dict[str, str | None]
    findings: tuple[Finding, ...]

    def text(self) -> str:
        """One line a finding, and below it what to do."""
        widest = max(len(finding.about) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{MARKS[finding.level]} {finding.about:{widest}}  {finding.found}")
            if finding.do:
                lines += textwrap.wrap(
                    finding.do, WIDTH, initial_indent=f"{INDENT}→ ", subsequent_indent=f"{INDENT}  ",
                    break_long_words=False, break_on_hyphens=False,
                )
        return "\n".join([*lines, "a server can start" if self.can_serve else "a server cannot start: see STOP above"])


def diagnose(settings: ServingSettings, ports: Ports, host: str) -> Diagnosis:
    """Look at everything that `dspark serve` with these settings would need."""
    machine, versions = read_machine(), installed_versions()
    findings = [*machine_findings(machine), *version_findings(versions)]
    for folder in built_engines():
        findings += engine_findings(folder, settings.threads, versions)
    findings += serving_findings(settings, ports, host, machine)
    stops = [finding for finding in findings if finding.level is Level.stop]
    return Diagnosis(not stops, machine, versions, tuple(findings))

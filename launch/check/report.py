"""Findings as text and as JSON. Pure."""

from collections.abc import Sequence

import msgspec

from launch.check.facts import Machine
from launch.check.findings import Finding, Level

_MARKS = {Level.OK: "ok", Level.WARN: "warn", Level.STOP: "STOP"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    serves: bool
    baton: str
    findings: tuple[Finding, ...]
    machine: Machine


def serves(found: Sequence[Finding]) -> bool:
    return all(finding.level is not Level.STOP for finding in found)


def as_json(machine: Machine, found: Sequence[Finding]) -> str:
    report = Report(
        serves=serves(found),
        baton=machine.software.baton,
        findings=tuple(found),
        machine=machine,
    )
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def as_text(machine: Machine, found: Sequence[Finding]) -> str:
    """One line a finding, a second one for what helps, and the verdict."""
    lines = [f"baton {machine.software.baton}", ""]
    for finding in found:
        lines.append(f"  {_MARKS[finding.level]:4}  {finding.topic:9}  {finding.text}")
        if finding.remedy:
            lines.append(f"        {'':9}  -> {finding.remedy}")
    return "\n".join([*lines, "", _verdict(found)])


def _verdict(found: Sequence[Finding]) -> str:
    n_stop, n_warn = (
        sum(finding.level is level for finding in found) for level in (Level.STOP, Level.WARN)
    )
    if n_stop:
        return f"{n_stop} of this would stop it from serving"
    if n_warn:  # one may be that nobody knows yet
        return f"nothing of this would stop it from serving; {n_warn} warning{'s' * (n_warn > 1)}"
    return "it can serve"

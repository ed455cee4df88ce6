"""`baton check`: the whole of it, with the flags of `baton serve`."""

from collections.abc import Mapping, Sequence

from launch.check.findings import Level, about_kernels, findings
from launch.check.machine import machine, processor
from launch.check.refusals import refusals
from launch.check.report import as_json, as_text, serves
from launch.settings import load_check


def check(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """The exit code, 1 where something would stop it from serving, and what to print.

    Raises SetupError where the flags make no sense; exits after --help.
    """
    told = load_check(argv, environ)
    facts = machine(told.config)
    found = findings(facts, told.config, refusals(told.config))
    show = as_json if told.as_json else as_text
    return (0 if serves(found) else 1), show(facts, found)


def kernel_warnings() -> list[str]:
    """What a server says of the kernels as it starts; nothing where they are as they should be."""
    return [
        f"kernels: {'; '.join(filter(None, (finding.text, finding.remedy)))}"
        for finding in about_kernels(processor())
        if finding.level is not Level.OK
    ]

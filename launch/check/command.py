"""`baton check`: the whole of it, with the flags of `baton serve`."""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from common.available import usable_cpus
from common.config import ServeConfig, resolve
from common.engine.sizing import is_fp8
from common.errors import SetupError
from common.ids import Role
from common.spellings import cuda_number
from launch.check.findings import Level, about_kernels, findings, lacking_for, without_fp8
from launch.check.machine import gpu, machine, processor, software
from launch.check.refusals import refusals
from launch.check.report import as_json, as_text, serves
from launch.settings import load_check, to_nobody


def check(
    argv: Sequence[str], environ: Mapping[str, str], warn: Callable[[str], None] = to_nobody
) -> tuple[int, str]:
    """The exit code, 1 where something would stop it from serving, and what to print.

    `warn` hears of each flag of another server's that is not needed.

    Raises SetupError where the flags make no sense; exits after --help.
    """
    told = load_check(argv, environ, warn)
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


def check_gpus(config: ServeConfig, roles: Sequence[Role]) -> None:
    """Raises SetupError where workers of those roles are to use a GPU and cannot."""
    settled = replace(config, model="", served_model_name="")
    workers = [w for role in roles for w in resolve(settled, role, join="", cpus=usable_cpus())]
    numbers = [n for w in workers if (n := cuda_number(w.device)) is not None]
    if not numbers:
        return
    there = gpu()
    lacking = list(lacking_for(max(numbers), there, software()))
    if is_fp8(config.kv_cache_dtype):
        lacking += without_fp8(numbers, there)
    for finding in lacking:
        raise SetupError(f"{finding.text}: {finding.remedy}")

"""A command line whose faults are one line each. Must not know which flags there are."""

import argparse
from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import NoReturn

from common.errors import SetupError
from launch.options import hint
from launch.other_servers import SWITCHES, answer, not_needed, takes_value

_OFF = ("false", "0")
_ON_OR_OFF = ("true", "false")


class Parser(argparse.ArgumentParser):
    """Raises SetupError where others write the usage and exit. No flag may be cut short."""

    def error(self, message: str) -> NoReturn:
        flag, is_switch, value = message.partition(": ignored explicit argument ")
        if is_switch:
            message = f"{flag}: takes no value, and {value} was given"
        raise SetupError(message.removeprefix("argument "))

    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]


def refusal(rest: Sequence[str], known: Sequence[str]) -> str:
    """What is wrong with arguments that no flag of `known` takes: a line for each flag."""
    names = [argument.partition("=")[0] for argument in rest if argument.startswith("-")]
    lines = [f"unknown flag {name}{remark(name, name, known)}" for name in dict.fromkeys(names)]
    if not rest[0].startswith("-"):
        lines.insert(0, f"unexpected argument {rest[0]!r}: every setting has a flag")
    return "\n".join(lines)


def without_unneeded(
    arguments: Sequence[str], known: Container[str]
) -> tuple[list[str], dict[str, str]]:
    """The same, where flags of other servers that are not needed have lost their values; and these,
    with what to say of each. They stay: what comes after is no value of what stands before."""
    rest, kept, why = deque(arguments), list[str](), dict[str, str]()
    while rest:
        argument = rest.popleft()
        flag, equals, value = argument.partition("=")
        if not flag.startswith("-") or flag in known:
            kept.append(argument)
            continue
        values = [value] if equals else _values(flag, rest)
        if flag in SWITCHES and values and values[0].lower() in _OFF:
            flag = flag.replace("--", "--no-", 1)
            values = []
        told = not_needed(flag, values[0] if values else None)
        if told is None:
            kept += [argument] if equals else [flag, *values]
        else:
            kept.append(flag)
            why[flag] = f"{' '.join([flag, *values])} is {told}"
    return kept, why


def _values(flag: str, rest: deque[str]) -> list[str]:
    """Takes those of that flag from what comes after it."""
    values: list[str] = []
    if rest and (_is_value(rest[0]) if takes_value(flag) else rest[0].lower() in _ON_OR_OFF):
        values.append(rest.popleft())
        while rest and rest[0].isdecimal():  # --cudagraph-capture-sizes 1 2 4
            values.append(rest.popleft())
    return values


def _is_value(argument: str) -> bool:
    return not argument.startswith("-") or argument[1:].isdecimal()


def remark(flag: str, name: str, known: Iterable[str]) -> str:
    """What to say of an unknown one: what another server's is here, or which known one is near."""
    theirs = answer(flag)
    return f": {theirs}" if theirs else hint(name, known)

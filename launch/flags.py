"""A command line whose faults are one line each. Must not know which flags there are."""

import argparse
from collections.abc import Iterable, Sequence
from typing import NoReturn

from common.errors import SetupError
from launch.options import hint
from launch.other_servers import answer


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
    """What is wrong with arguments that no flag of `known` takes."""
    unknown = next((argument for argument in rest if argument.startswith("-")), None)
    if unknown is None:
        return f"unexpected argument {rest[0]!r}: every setting has a flag"
    name = unknown.partition("=")[0]
    return f"unknown flag {name}{remark(name, name, known)}"


def remark(flag: str, name: str, known: Iterable[str]) -> str:
    """What to say of an unknown one: what another server's is here, or which known one is near."""
    theirs = answer(flag)
    return f": {theirs}" if theirs else hint(name, known)

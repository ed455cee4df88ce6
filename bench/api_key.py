"""The key that a benchmark's requests bear: a flag's, else that of OpenAI's own clients.

Must not read the process's environment: it is an argument.
"""

import argparse
from collections.abc import Mapping
from types import MappingProxyType

VARIABLE = "OPENAI_API_KEY"
REMEDY = f"--api-key KEY, or the variable {VARIABLE}"
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def add_flag(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument("--api-key", help=f"`ps` shows it [the variable {VARIABLE}]")


def complete(options: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """The flag's value, where it was not given."""
    options.api_key = options.api_key or environ.get(VARIABLE)


def authorization(options: argparse.Namespace) -> dict[str, str]:
    """The header of every request; none without a key."""
    return {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}

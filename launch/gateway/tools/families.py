"""Which family's way of calling a model has: as its template tells, or as the operator says."""

from collections.abc import Callable
from typing import Literal

from launch.gateway.tools.hermes import HermesReader
from launch.gateway.tools.llama3 import Llama3Reader
from launch.gateway.tools.mistral import MistralReader
from launch.gateway.tools.reader import Reader

Family = Literal["hermes", "llama3_json", "mistral"]

READERS: dict[Family, Callable[[], Reader]] = {
    "hermes": HermesReader,
    "llama3_json": Llama3Reader,
    "mistral": MistralReader,
}
SPECIAL_MARKS = frozenset[Family](("llama3_json", "mistral"))
"""Their marks are special tokens, which otherwise are left out of what a client sees."""

_SIGNS: dict[Family, tuple[str, ...]] = {
    "hermes": ("<tool_call>",),
    "mistral": ("[TOOL_CALLS]",),
    "llama3_json": ('"parameters"', "<|start_header_id|>"),
}


def family_of(template: str) -> Family | None:
    """By what a chat template writes; None: it is none of ours."""
    return next((f for f, signs in _SIGNS.items() if all(s in template for s in signs)), None)

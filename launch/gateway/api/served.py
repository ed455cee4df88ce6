"""What a server offers, as far as requests are concerned."""

from collections.abc import Callable
from dataclasses import dataclass

from common.text.load import TextModel
from common.values import ToolCallParser
from launch.gateway.transfers import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Told with every request: workers come and go, and `max_model_len` with them."""

    model: str  # its name in the API
    text: TextModel
    max_model_len: int
    max_logprobs: int
    draw_seed: Callable[[], int]
    slo: Slo  # of requests that state none
    check_grammar: Callable[[str, str], None]  # (grammar, param): ClientError where it is none
    tool_call_parser: ToolCallParser  # auto: as the template tells

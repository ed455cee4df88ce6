"""What a server offers, as far as requests are concerned."""

from collections.abc import Callable
from dataclasses import dataclass

from common.errors import ClientError
from common.text.load import TextModel
from common.values import ReasoningParser, ToolCallParser
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
    reasoning_parser: ReasoningParser  # none: thoughts are text
    trusts_templates: bool = False  # of clients: they are programs


def check_model(name: str | None, model: str) -> None:
    """Raise ClientError unless a request's `model`, where it names one, is the one that is here."""
    if name is not None and name != model:
        raise ClientError(
            f"The model `{name[:200]}` does not exist; this server has `{model}`.",
            param="model",
            status=404,
        )

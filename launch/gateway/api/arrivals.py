"""One line of the log for each request as it comes: its size, and what its client calls it.

The text of a client, and its parameters, only where the operator asks for them.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from common.log import line
from launch.gateway.api.prepare import Prepared, Prompt

CLIENT_ID = "x-request-id"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What the operator wants to read of requests."""

    with_text: bool = False
    max_length: int | None = None  # of a prompt: characters, or token ids where it came as ids

    def tell(self, answer_id: str, prepared: Prepared, headers: Mapping[str, str]) -> None:
        """A request is understood: a line each for its prompts with their text, one without."""
        if self.with_text:
            for prompt in prepared.prompts:
                self._line(logging.INFO, answer_id, headers, prepared, (prompt,))
        elif _log.isEnabledFor(logging.DEBUG):
            self._line(logging.DEBUG, answer_id, headers, prepared, prepared.prompts)

    def _line(
        self,
        level: int,
        answer_id: str,
        headers: Mapping[str, str],
        prepared: Prepared,
        prompts: tuple[Prompt, ...],
    ) -> None:
        (first, *_) = prompts
        parameters = msgspec.to_builtins(first.params, str_keys=True) if self.with_text else None
        told = line(
            "request",
            request=answer_id,
            client_request=headers.get(CLIENT_ID),
            prompts=len(prompts),
            prompt_tokens=sum(len(prompt.ids) for prompt in prompts),
            n=prepared.n,
            stream=prepared.stream,
            prompt=self._text(first) if self.with_text else None,
            params=parameters,
        )
        _log.log(level, told)

    def _text(self, prompt: Prompt) -> str:
        if prompt.text is None:
            return str(list(prompt.ids[: self.max_length]))
        return prompt.text[: self.max_length]

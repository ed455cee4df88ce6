"""An answer as /v1/completions promises it."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from common.params import TokenLogprob
from common.text.tokenizer import Tokenizer
from launch.gateway.api.answer import Piece, Scored, Usage
from launch.gateway.api.forms import ChoicesForm, Gathered, prompt_logprobs, sse
from launch.gateway.api.prepare import Prepared
from launch.gateway.api.responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    UsageBody,
    encode,
)


class CompletionForm(ChoicesForm[CompletionChoice]):
    """/v1/completions"""

    id_prefix = "cmpl"

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None:
        super().__init__(answer_id, model, tokenizer, prepared)
        self._begun: set[int] = set()
        self._tells_text_alone &= self._logprobs is None

    def opening(self, n_choices: int) -> bytes:  # noqa: ARG002
        return b""

    def _event(self, piece: Piece) -> bytes:
        choice = CompletionChoice(
            index=piece.choice,
            text=piece.text,
            logprobs=self._scores(piece.scored),
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
            token_ids=list(piece.tokens) if self._prompts else UNSET,
        )
        if self._prompts and piece.choice not in self._begun:
            self._begun.add(piece.choice)
            choice.prompt_token_ids = list(self._prompts[piece.choice])
        return sse(encode(self._chunk([choice], self._usages.after(piece))))

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes:
        made = [
            CompletionChoice(
                index=index,
                text=choice.text,
                logprobs=self._scores(choice.scored),
                finish_reason=choice.finish,
                stop_reason=choice.stop_reason,
                token_ids=choice.tokens if self._prompts else UNSET,
                prompt_token_ids=list(self._prompts[index]) if self._prompts else UNSET,
                prompt_logprobs=prompt_logprobs(choice, self._prompt_logprobs, self._tokenizer),
            )
            for index, choice in enumerate(choices)
        ]
        return encode(self._chunk(made, self._usage(usage)))

    def _chunk(
        self, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None
    ) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def _scores(self, scored: Sequence[Scored]) -> CompletionLogprobs | None:
        if self._logprobs is None:
            return None
        return CompletionLogprobs(
            tokens=[self._name_of(s.token) for s in scored],
            token_logprobs=[None if s.logprob is None else s.logprob.logprob for s in scored],
            top_logprobs=[self._top(s.logprob, self._logprobs) for s in scored],
            text_offset=[s.offset for s in scored],
        )

    def _top(self, logprob: TokenLogprob | None, n: int) -> dict[str, float] | None:
        """The n alternatives, and the token itself, as OpenAI has it."""
        if logprob is None:
            return None
        pairs = [*zip(logprob.top_tokens, logprob.top_logprobs, strict=True)][:n]
        if logprob.token not in logprob.top_tokens[:n]:
            pairs.append((logprob.token, logprob.logprob))
        return {self._name_of(token): value for token, value in pairs}

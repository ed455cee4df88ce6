"""Texts to tokens and back, as /tokenize and /detokenize promise it; shapes and names are vLLM's.

Slow where there is much of it: called in a worker thread. Must generate nothing.
"""

from common.errors import ClientError
from common.text.load import TextModel
from common.text.tokenizer import check_prompt_ids
from launch.gateway.api.calling import told
from launch.gateway.api.decoding import shown
from launch.gateway.api.prompts import chat_text, check_text_length, with_template
from launch.gateway.api.requests import ChatRequest
from launch.gateway.api.responses import Detokenized, Tokenized
from launch.gateway.api.text_requests import DetokenizeRequest, TokenizeRequest

_OF_CHATS = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "tools",
)


def tokenized(
    request: TokenizeRequest,
    text: TextModel,
    *,
    max_model_len: int | None,
    trusts_templates: bool,
) -> Tokenized:
    """Raises ClientError. `max_model_len`: None where no worker tells it."""
    if (request.prompt is None) == (request.messages is None):
        given = "nothing" if request.prompt is None else "both"
        raise ClientError(f"one of prompt and messages is needed; {given} is given", param="prompt")
    if request.prompt is None:
        whole, of_template = _conversation(request, text, trusts_templates=trusts_templates), True
    else:
        _refuse_of_chats(request)
        whole, of_template = request.prompt, False
    param = "messages" if of_template else "prompt"
    check_text_length(len(whole), max_model_len, param=param)
    adds = request.add_special_tokens
    adds = not of_template if adds is None else adds
    ids = text.tokenizer.encode(whole, add_special_tokens=adds)
    return Tokenized(
        count=len(ids),
        max_model_len=max_model_len,
        tokens=ids,
        token_strs=list(map(text.tokenizer.text_of, ids)) if request.return_token_strs else None,
    )


def detokenized(request: DetokenizeRequest, text: TextModel) -> Detokenized:
    """Raises ClientError."""
    check_prompt_ids(request.tokens, vocab_size=text.vocab_size, param="tokens")
    return Detokenized(prompt=text.tokenizer.decode(request.tokens, skip_special_tokens=False))


def tokenizer_info(text: TextModel) -> dict[str, object]:
    """As a model's `tokenizer_config.json` tells it, which vLLM passes on."""
    vocabulary = text.tokenizer.vocabulary
    special = {
        str(token): {"content": text.tokenizer.text_of(token), "special": True}
        for token in sorted(vocabulary.special_ids)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "vocab_size": text.tokenizer.vocab_size,
        "model_max_length": text.context_length,
        **vocabulary.special_tokens,
        "added_tokens_decoder": special,
        "chat_template": None if text.template is None else text.template.source,
    }


def _conversation(request: TokenizeRequest, text: TextModel, *, trusts_templates: bool) -> str:
    chat = ChatRequest(
        messages=request.messages or [],
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    text = with_template(text, request.chat_template, trusted=trusts_templates)
    return chat_text(chat, text, told(request.tools) if request.tools else None)


def _refuse_of_chats(request: TokenizeRequest) -> None:
    for name in _OF_CHATS:
        if value := getattr(request, name):
            raise ClientError(f"{name} is {shown(value)}, but there are no messages", param=name)

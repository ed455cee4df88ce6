"""What clients send: the bodies of requests, each field with its bounds and what it does.

`launch.gateway.api.decoding` decodes them and says what is wrong; docs/api.md and the published
document are made from them. Fields of OpenAI's that change nothing here are accepted; those that
would change the answer and are not supported are refused by `launch.gateway.api.prepare`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from common.values import MAX_WAIT_S, Milliseconds
from launch.gateway.api.form_bodies import (
    MAX_STOP_CHARS,
    MAX_TOKEN_RULES,
    ResponseFormat,
    StructuredOutputs,
)
from launch.gateway.api.support import IGNORED, refused
from launch.gateway.api.tool_bodies import MAX_TOOLS, AllowedToolChoice, NamedTool, ToolBody

MAX_INT = 2**31 - 1  # of what is not bounded more narrowly: it must fit every message
MAX_STOPS = 16
MAX_BAD_WORDS = 1024
MAX_SALT_CHARS = 256
MAX_SAMPLES = 128  # of a prompt
MAX_CHOICES = 1024  # prompts times n
MAX_DOCUMENTS = 1024
MAX_TEMPLATE_CHARS = 2**17

SERVED = "x-served"
"""In a type's JSON schema: which limit of the server that is running bounds it, too."""
ModelName = Annotated[str, Meta(extra_json_schema={SERVED: "model"})]
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT, extra_json_schema={SERVED: "token_id"})]
TokenCount = Annotated[int, Meta(ge=0, le=MAX_INT)]
SomeTokens = Annotated[int, Meta(ge=1, le=MAX_INT)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_INT, extra_json_schema={SERVED: "logprobs"})]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Priority = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
TemplateText = Annotated[str, Meta(min_length=1, max_length=MAX_TEMPLATE_CHARS)]
OWN_TEMPLATE = Meta(
    description="a jinja2 template in place of the model's; needs --trust-request-chat-template"
)
NO_BEAMS = "sequences are drawn one by one; use n, or best_of of completions"
TEMPLATE_OPTIONS = Meta(description="what the model's chat template may ask for")


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of a streamed answer."""

    include_usage: Annotated[
        bool | None, Meta(description="the last event tells what the answer has used")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None,
        Meta(description="and so does every event, of its choice so far; needs include_usage"),
    ] = None
    include_obfuscation: Annotated[bool | None, IGNORED] = None


class SloBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer is owed; by default what the server owes everybody."""

    ttft_ms: Annotated[
        Milliseconds | None,
        Meta(description="ms to the first token; refused at once with 429 where it cannot be"),
    ] = None
    tpot_ms: Annotated[
        Milliseconds | None, Meta(description="ms a token after the first, in the mean")
    ] = None


class Drawing(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all endpoints share. None: the model's own default, else OpenAI's."""

    model: Annotated[ModelName | None, Meta(description="the served model's name")] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="0: the likeliest token [1]")
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="draw among the likeliest tokens that make up this share [1]"),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=MAX_INT)] | None,
        Meta(description="draw among this many likeliest tokens; 0 and -1: all [0]"),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="draw among tokens this share as likely as the likeliest [0]"),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
        Meta(description="same seed, same draws [drawn by the server]"),
    ] = None
    stop: Annotated[
        StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None,
        Meta(description="texts that end an answer"),
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_RULES)] | None,
        Meta(description="tokens that end an answer"),
    ] = None
    presence_penalty: Annotated[
        Penalty | None, Meta(description="taken from the logits of tokens in the answer so far [0]")
    ] = None
    frequency_penalty: Annotated[
        Penalty | None, Meta(description="the same, for each time that they occur [0]")
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0.01, le=100)] | None,
        Meta(description="divides the logits of tokens in the prompt and the answer so far [1]"),
    ] = None
    logit_bias: Annotated[
        Annotated[
            dict[str, Bias],
            Meta(
                max_length=MAX_TOKEN_RULES,
                extra_json_schema={"propertyNames": {"pattern": "^[0-9]{1,10}$"}},
            ),
        ]
        | None,
        Meta(description="token id -> what is added to its logit"),
    ] = None
    min_tokens: Annotated[
        TokenCount | None,
        Meta(description="tokens before an answer may end; not over its max_tokens [0]"),
    ] = None
    allowed_token_ids: Annotated[
        Annotated[list[TokenId], Meta(min_length=1)] | None,
        Meta(description="an answer is made of these tokens alone, its end included"),
    ] = None
    bad_words: Annotated[
        Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None,
        Meta(
            description="texts that an answer does not say, as they are spelt at its beginning "
            "and, if in as many tokens, behind a space; they give way where nothing else may be "
            "said"
        ),
    ] = None
    ignore_eos: Annotated[bool, Meta(description="the model's end tokens do not end an answer")] = (
        False
    )
    include_stop_str_in_output: Annotated[
        bool, Meta(description="the text keeps what ended it")
    ] = False
    skip_special_tokens: Annotated[bool, Meta(description="special tokens are no text")] = True
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None,
        Meta(description="prompts with different ones share no cached pages"),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="what an answer must be, as vLLM says it")
    ] = None
    stream: Annotated[bool | None, Meta(description="answer by server-sent events")] = None
    slo: Annotated[SloBody | None, Meta(description="what the answer is owed")] = None
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=MAX_WAIT_S)] | None,
        Meta(description="seconds for all of the answer; past them it is given up with 504"),
    ] = None
    priority: Annotated[
        Priority, Meta(description="lower ones come first, where requests wait")
    ] = 0
    user: Annotated[str | None, IGNORED] = None
    metadata: Annotated[dict[str, Any] | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    safety_identifier: Annotated[str | None, IGNORED] = None
    prompt_cache_key: Annotated[str | None, IGNORED] = None


class Sampling(Drawing, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats share."""

    max_tokens: Annotated[
        TokenCount | None,
        Meta(description="tokens of each answer, at most [16]; 0 needs echo"),
    ] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None,
        Meta(description=f"answers to each prompt; {MAX_CHOICES} choices in all, at most [1]"),
    ] = None
    return_token_ids: Annotated[
        bool | None, Meta(description="tell the ids of prompts and answers")
    ] = None
    prompt_logprobs: Annotated[
        Alternatives | None,
        Meta(description="alternatives told of each token of the prompt; not in a stream"),
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=MAX_INT, extra_json_schema={"not": {"const": 0}})] | None,
        Meta(description="keep so many tokens of a prompt, the last ones; -1: as many as fit"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None,
        Meta(description="of a prompt that is truncated: where tokens are left out [left]"),
    ] = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="what an answer must be, as OpenAI says it")
    ] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="needs stream")] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, Meta(description='tokens with a logprob are told as "token_id:7"')
    ] = None
    use_beam_search: Annotated[bool | None, refused(NO_BEAMS, enum=[None, False])] = None
    spaces_between_special_tokens: Annotated[bool | None, IGNORED] = None
    length_penalty: Annotated[float | None, IGNORED] = None
    request_id: Annotated[str | None, IGNORED] = None
    session_id: Annotated[str | None, IGNORED] = None
    return_token_offsets: Annotated[bool | None, IGNORED] = None
    return_mm_kwargs: Annotated[bool | None, IGNORED] = None
    store: Annotated[bool | None, IGNORED] = None


class CompletionRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions"""

    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
        Meta(description="a text, texts, token ids, or lists of token ids"),
    ]
    echo: Annotated[bool | None, Meta(description="an answer begins with its prompt")] = None
    add_special_tokens: Annotated[
        bool, Meta(description="to a prompt that is text those that the model wants around it")
    ] = True
    logprobs: Annotated[
        Alternatives | None, Meta(description="alternatives told of each token [no logprobs]")
    ] = None
    best_of: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None,
        Meta(description="draw so many, and tell the n likeliest a token; not in a stream [n]"),
    ] = None
    suffix: Annotated[str | None, refused("this model cannot infill", maxLength=0)] = None


class ChatRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions"""

    messages: Annotated[
        list[dict[str, Any]],
        Meta(
            description="the conversation, as the model's chat template takes it; of content only "
            "text"
        ),
    ]
    max_tokens: Annotated[
        SomeTokens | None,
        Meta(description="tokens of each answer, at most [the model's own, else what fits]"),
    ] = None
    max_completion_tokens: Annotated[
        SomeTokens | None, Meta(description="its newer name, which wins")
    ] = None
    logprobs: Annotated[bool | None, Meta(description="tell each token's logprob")] = None
    top_logprobs: Annotated[
        Alternatives | None, Meta(description="alternatives told of each token; needs logprobs [0]")
    ] = None
    chat_template: Annotated[TemplateText | None, OWN_TEMPLATE] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, TEMPLATE_OPTIONS] = None
    documents: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=MAX_DOCUMENTS)] | None,
        Meta(description="texts that the model may draw on, where its chat template shows them"),
    ] = None
    add_special_tokens: Annotated[
        bool, Meta(description="those that the model wants around a prompt, beside the template's")
    ] = False
    include_reasoning: Annotated[
        bool, Meta(description="tell the thoughts of a reasoning model, where they are told apart")
    ] = True
    add_generation_prompt: Annotated[
        bool | None,
        Meta(description="begin the assistant's turn [unless the final message is continued]"),
    ] = None
    continue_final_message: Annotated[
        bool, Meta(description="the answer goes on where the last message ends")
    ] = False
    tools: Annotated[
        Annotated[list[ToolBody], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="functions that the model may call"),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | AllowedToolChoice | None,
        Meta(
            description="required, or one by name: calls are held to their schemas, and parse "
            "[auto]"
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false, where a call is required: no more than one [true]")
    ] = None
    functions: Annotated[list[Any] | None, refused("use tools", maxItems=0)] = None
    function_call: Annotated[Any, refused("use tool_choice", enum=[None, "none", "auto"])] = None
    modalities: Annotated[list[str] | None, refused("answers are text", enum=[None, ["text"]])] = (
        None
    )
    audio: Annotated[Any, refused("answers are text", type="null")] = None
    web_search_options: Annotated[Any, refused("nothing is searched", type="null")] = None
    moderation: Annotated[Any, refused("nothing is moderated", type="null")] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    prompt_cache_retention: Annotated[str | None, IGNORED] = None
    prediction: Annotated[Any, IGNORED] = None
    reasoning_effort: Annotated[str | None, IGNORED] = None
    verbosity: Annotated[str | None, IGNORED] = None

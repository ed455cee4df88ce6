"""The published document says no less than the types, and what they cannot say."""

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from openai.resources.chat.completions import Completions as Chats
from openai.resources.completions import Completions
from openai.resources.responses import Responses

from launch.gateway.api.decoding import INSTEAD
from launch.gateway.api.docs import ERRORS, POSTS, SWAGGER_UI, ServedLimits, openapi
from launch.gateway.api.item_request import ItemRequest
from launch.gateway.api.requests import SERVED, ChatRequest, CompletionRequest
from launch.gateway.api.text_requests import TokenizeRequest
from launch.gateway.auth import OPEN_PATHS

LIMITS = ServedLimits(model="tiny", vocab_size=10, max_logprobs=3, tells_tokenizer=False)


def fields(document: dict[str, Any], kind: type) -> dict[str, Any]:
    return dict(document["components"]["schemas"][kind.__name__]["properties"])


def test_one_servers_own_limits() -> None:
    told = fields(openapi(LIMITS), CompletionRequest)
    assert told["model"]["anyOf"][0] == {"type": "string", "enum": ["tiny"]}
    assert told["logprobs"]["anyOf"][0]["maximum"] == 3
    assert told["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == 9
    assert told["prompt"]["anyOf"][2]["items"]["maximum"] == 9
    of_any = fields(openapi(), CompletionRequest)
    assert of_any["model"]["anyOf"][0] == {"type": "string"}
    assert of_any["logprobs"]["anyOf"][0]["maximum"] == 2**31 - 1


@pytest.mark.parametrize("limits", [None, LIMITS])
def test_names_of_limits_are_not_published(limits: ServedLimits | None) -> None:
    assert SERVED not in json.dumps(openapi(limits))


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest, TokenizeRequest])
def test_every_field_tells_what_it_does(kind: type) -> None:
    silent = [name for name, one in fields(openapi(), kind).items() if not one.get("description")]
    assert silent == []


def test_the_page_can_show_this_version_of_openapi() -> None:
    """Swagger UI before 5 shows nothing of OpenAPI 3.1."""
    assert openapi()["openapi"].startswith("3.1.")
    script = (SWAGGER_UI / "swagger-ui-bundle.js").read_text()
    shipped = re.search(r'PACKAGE_VERSION:"(\d+)\.\d+\.\d+"', script)
    assert shipped is not None
    assert int(shipped[1]) >= 5


def test_every_post_tells_how_it_fails() -> None:
    for path in POSTS:
        answers = openapi()["paths"][path]["post"]["responses"]
        assert set(answers) >= {"200", *ERRORS}
        for status in ("429", "503"):
            assert "Retry-After" in answers[status]["headers"]


def test_where_a_key_is_asked_for() -> None:
    document = openapi()
    assert document["security"] == [{"bearer": []}, {}]  # if the server has any
    for path, methods in document["paths"].items():
        for one in (methods[name] for name in ("get", "post") if name in methods):
            is_open = path in OPEN_PATHS
            assert one.get("security") == ([] if is_open else None), path
            assert ("401" in one["responses"]) is not is_open, path


@pytest.mark.parametrize(
    ("create", "kind"),
    [
        (Completions.create, CompletionRequest),
        (Chats.create, ChatRequest),
        (Responses.create, ItemRequest),
    ],
)
def test_every_parameter_of_the_official_client_is_known(
    create: Callable[..., object], kind: type
) -> None:
    of_the_client = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    names = set(inspect.signature(create).parameters) - of_the_client
    assert names - set(fields(openapi(), kind)) == set()


OF_VLLM = {
    *("top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids", "priority"),
    *("include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens"),
    *("spaces_between_special_tokens", "truncate_prompt_tokens", "prompt_logprobs"),
    *("allowed_token_ids", "bad_words", "use_beam_search", "add_special_tokens", "request_id"),
    *("structured_outputs", "cache_salt", "return_token_ids", "return_tokens_as_token_ids"),
    *("kv_transfer_params", "logits_processors", "vllm_xargs", "repetition_detection"),
    *("ec_transfer_params", "watermarking", "truncation_side", "logprob_token_ids", "session_id"),
    *("routed_experts_prompt_start", "return_token_offsets", "return_mm_kwargs"),
    *("stream_interval", "thinking_token_budget", "response_format", "echo"),
}
OF_VLLM_CHATS = {
    *("chat_template", "chat_template_kwargs", "documents", "add_generation_prompt"),
    *("continue_final_message", "include_reasoning", "reasoning_effort", "mm_processor_kwargs"),
    *("media_io_kwargs", "return_prompt_text"),
}


@pytest.mark.parametrize(
    ("names", "kind"),
    [(OF_VLLM | {"prompt_embeds"}, CompletionRequest), (OF_VLLM | OF_VLLM_CHATS, ChatRequest)],
)
def test_every_field_of_vllm_is_known_or_has_a_remedy(names: set[str], kind: type) -> None:
    assert names - set(fields(openapi(), kind)) <= INSTEAD.keys()

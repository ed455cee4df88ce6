"""Bodies prepared as the routes do it, and what they are refused with."""

import msgspec
import pytest

from common.errors import ClientError
from launch.gateway.api.decoding import decode
from launch.gateway.api.prepare import Prepared, prepare_chat, prepare_completion
from launch.gateway.api.requests import ChatRequest, CompletionRequest
from launch.gateway.api.served import Served

CAPITAL = (504, 3575, 282, 4649, 314)  # "The capital of France is"
USER = {"role": "user", "content": "Hi"}


def completion(served: Served, **fields: object) -> Prepared:
    body = {"prompt": "The capital of France is", **fields}
    return prepare_completion(decode(msgspec.json.encode(body), CompletionRequest), served)


def chat(served: Served, **fields: object) -> Prepared:
    body = {"messages": [USER], **fields}
    return prepare_chat(decode(msgspec.json.encode(body), ChatRequest), served)


def refused(served: Served, **fields: object) -> tuple[str | None, str]:
    with pytest.raises(ClientError) as raised:
        (chat if "messages" in fields else completion)(served, **fields)
    return raised.value.param, str(raised.value)

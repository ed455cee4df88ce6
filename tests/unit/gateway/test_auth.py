"""Who may use the API: in front of the real application."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2 as httpx
import openai
import pytest
from starlette.routing import BaseRoute, Mount, Route

from common.config import ServeConfig
from common.messages import Expect, FinishReason
from common.text.load import TextModel
from launch.gateway.auth import OPEN_PATHS, Keys, guarded
from tests.unit.gateway.scripted import Said, Served, serving, until

KEYS = ("first-key", "second-key")
FIRST, SECOND = ({"authorization": f"Bearer {key}"} for key in KEYS)
ASKED = {"prompt": "a", "max_tokens": 2}
ORIGIN = "https://pages.example"


def says(_expect: Expect, _sample: int) -> Said:
    return [81, 82], FinishReason.LENGTH


def run(
    text: TextModel,
    test: Callable[[Served, httpx.AsyncClient], Coroutine[Any, Any, None]],
    **options: Any,  # noqa: ANN401 fields of ServeConfig
) -> None:
    async def whole() -> None:
        config = ServeConfig(served_model_name="tiny", **options)
        async with serving(text, says, config=config) as served:
            app = guarded(served.app, config, config.api_key or (), served.metrics)
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
                await test(served, client)

    asyncio.run(whole())


def path_of(route: BaseRoute) -> str:
    assert isinstance(route, Route | Mount)
    return route.path.replace("{name:path}", "tiny")


def test_without_a_key_only_probes_are_answered(smollm2: TextModel) -> None:
    async def test(served: Served, client: httpx.AsyncClient) -> None:
        paths = {path_of(route) for route in served.app.routes} | {"/nothing", "/"}
        assert paths > OPEN_PATHS | {"/v1/completions", "/tokenize"}
        for path in paths:
            for method in ("GET", "POST", "OPTIONS", "HEAD"):
                response = await client.request(method, path)
                assert (response.status_code == 401) == (path not in OPEN_PATHS), path
        for path in ("/docs", "/openapi.json", "/docs/assets/swagger-ui.css"):
            assert (await client.get(path)).status_code == 200, path
        assert served.worker.seen == []

    run(smollm2, test, api_key=KEYS)


@pytest.mark.parametrize(
    "path",
    [
        "/health/",
        "//health",
        "/HEALTH",
        "/health/../v1/models",
        "/metrics/x",
        "/v1/models?/health",
        "/docs/x",
    ],
)
def test_no_path_is_taken_for_a_probes(smollm2: TextModel, path: str) -> None:
    async def test(_: Served, client: httpx.AsyncClient) -> None:
        assert (await client.get(f"http://t{path}")).status_code == 401

    run(smollm2, test, api_key=KEYS)


def test_a_refusal_is_openais_and_shows_no_key(smollm2: TextModel) -> None:
    async def test(served: Served, client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/completions", json=ASKED)
        assert response.json() == {
            "error": {
                "message": "there is no API key; send one as `Authorization: Bearer KEY`",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            }
        }
        assert response.headers["www-authenticate"] == "Bearer"
        wrong = {"authorization": "Bearer sk-mine"}
        response = await client.post("/v1/completions", json=ASKED, headers=wrong)
        assert response.json()["error"]["message"] == "the API key is none of this server's"
        for official in (client_of(client, "sk-mine"), client_of(client, "first-key2")):
            with pytest.raises(openai.AuthenticationError) as raised:
                await official.models.list()
            assert raised.value.code == "invalid_api_key"
        page = served.metrics.render().decode()
        assert 'baton:request_failure_total{model_name="tiny",status="401"} 4.0' in page

    run(smollm2, test, api_key=KEYS)


def client_of(client: httpx.AsyncClient, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://t/v1", api_key=key, http_client=client, max_retries=0
    )


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ("Bearer first-key", 200),
        ("bearer  second-key ", 200),
        ("Bearer first-ke", 401),
        ("Bearer first-keyy", 401),
        ("Bearer FIRST-KEY", 401),
        ("Bearer first-key,second-key", 401),
        ("Bearer first-key second-key", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("Basic first-key", 401),
        ("first-key", 401),
        ("", 401),
    ],
)
def test_what_bears_a_key(smollm2: TextModel, told: str, status: int) -> None:
    async def test(_: Served, client: httpx.AsyncClient) -> None:
        response = await client.get("/v1/models", headers={"authorization": told})
        assert response.status_code == status

    run(smollm2, test, api_key=KEYS)


def test_any_of_the_keys_is_good(smollm2: TextModel) -> None:
    async def test(_: Served, client: httpx.AsyncClient) -> None:
        for key in KEYS:
            official = client_of(client, key)
            answer = await official.completions.create(model="tiny", prompt="a", max_tokens=2)
            assert answer.choices[0].finish_reason == "length"

    run(smollm2, test, api_key=KEYS)
    keys = Keys(KEYS)
    assert [keys.number_of(key.encode()) for key in (*KEYS, "", "x")] == [0, 1, None, None]


def test_without_keys_everybody_may_ask(smollm2: TextModel) -> None:
    async def test(served: Served, client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/completions", json=ASKED)).status_code == 200
        assert guarded(served.app, ServeConfig(), (), served.metrics) is served.app

    run(smollm2, test)


def test_each_key_has_so_many_streams(smollm2: TextModel) -> None:
    async def test(served: Served, client: httpx.AsyncClient) -> None:
        async def ask(headers: dict[str, str]) -> httpx.Response:
            body = {**ASKED, "stream": True}
            return await client.post("/v1/completions", json=body, headers=headers)

        served.worker.silent = True
        running = asyncio.create_task(ask(FIRST))
        await until(lambda: len(served.worker.jobs) == 1)
        refused = await ask(FIRST)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"] == {
            "message": "requests in progress for this API key: 1 of 1 (--max-streams-per-key)",
            "type": "rate_limit_error",
            "param": None,
            "code": 429,
        }
        assert (await client.get("/v1/models", headers=FIRST)).status_code == 200
        other = asyncio.create_task(ask(SECOND))
        await until(lambda: len(served.worker.jobs) == 2)
        served.worker.silent = False
        assert [(await one).status_code for one in (running, other)] == [200, 200]
        assert (await ask(FIRST)).status_code == 200

    run(smollm2, test, api_key=KEYS, max_streams_per_key=1)


def test_a_place_is_given_back_by_who_fails_and_who_leaves(smollm2: TextModel) -> None:
    async def test(served: Served, client: httpx.AsyncClient) -> None:
        for _ in range(3):
            wrong = await client.post("/v1/completions", json={"n": "x"}, headers=FIRST)
            assert wrong.status_code == 400
        served.worker.silent = True
        leaving = asyncio.create_task(client.post("/v1/completions", json=ASKED, headers=FIRST))
        await until(lambda: len(served.worker.jobs) == 1)
        leaving.cancel()
        await asyncio.wait([leaving])
        served.worker.silent = False
        answer = await client.post("/v1/completions", json=ASKED, headers=FIRST)
        assert answer.status_code == 200

    run(smollm2, test, api_key=KEYS, max_streams_per_key=1)


def test_pages_of_allowed_origins_may_ask(smollm2: TextModel) -> None:
    wish = {"access-control-request-method": "POST", "access-control-request-headers": "x-mine"}

    async def test(_: Served, client: httpx.AsyncClient) -> None:
        asked = await client.options("/v1/completions", headers={"origin": ORIGIN, **wish})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "x-mine" in asked.headers["access-control-allow-headers"]
        stranger = {"origin": "https://evil.example"}
        asked = await client.options("/v1/completions", headers={**stranger, **wish})
        assert asked.status_code == 400
        for headers, status in ((FIRST, 200), ({}, 401)):
            told = await client.get("/v1/models", headers={"origin": ORIGIN, **headers})
            assert told.status_code == status
            assert told.headers["access-control-allow-origin"] == ORIGIN
        told = await client.get("/v1/models", headers={**stranger, **FIRST})
        assert "access-control-allow-origin" not in told.headers

    run(smollm2, test, api_key=KEYS, allowed_origins=(ORIGIN,))


def test_no_origin_is_allowed_unless_named(smollm2: TextModel) -> None:
    async def test(_: Served, client: httpx.AsyncClient) -> None:
        told = await client.get("/v1/models", headers={"origin": ORIGIN})
        assert "access-control-allow-origin" not in told.headers

    run(smollm2, test)

"""`GET /status` over HTTP, and the page that shows it."""

import asyncio
import re
import tomllib
from collections.abc import Callable, Coroutine
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx2 as httpx

from common.config import ServeConfig
from common.messages import Expect, FinishReason
from common.metrics import GatewayMetrics
from common.text.load import TextModel
from launch.gateway.auth import guarded
from launch.gateway.watching import UI
from tests.unit.gateway.scripted import Said, Served, serving

ROOT = Path(__file__).parents[3]
FILES = sorted(path.name for path in UI.iterdir())


def says(_expect: Expect, _sample: int) -> Said:
    return [81, 82, 83], FinishReason.LENGTH


def run(
    text: TextModel,
    test: Callable[[Served], Coroutine[Any, Any, None]],
    config: ServeConfig | None = None,
) -> None:
    async def whole() -> None:
        async with serving(text, says, config=config) as served:
            await test(served)

    asyncio.run(whole())


def test_a_request_is_told_with_what_it_took_and_never_with_its_text(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        await served.complete(prompt="one two", max_tokens=50)
        response = await served.client.get("/status")
        assert response.headers["cache-control"] == "no-store"
        document = response.json()
        (told,) = document["requests"]
        assert told["id"].startswith("cmpl-")
        assert (told["state"], told["output_tokens"], told["prompt_tokens"]) == ("length", 3, 2)
        assert told["routed_s"] <= told["first_token_s"] <= told["ended_s"]
        assert (told["prefill"], told["decode"]) == ("decode-11111111", "decode-11111111")
        assert document["latency"]["e2e_s"]["n"] == 1
        assert document["slo"] == {
            "ttft_s": 60.0,
            "tpot_s": None,
            "judged": 1,
            "met": 1.0,
            "ttft_met": 1.0,
            "tpot_met": None,
        }
        (worker,) = document["workers"]
        assert (worker["name"], worker["state"]) == ("decode-11111111", "up")
        assert document["series"] == []
        assert "one two" not in response.text

    run(smollm2, test, ServeConfig(served_model_name="tiny", slo_ttft=60_000.0))


def test_streams_in_progress_and_failures_are_told(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        async with served.client.stream(
            "POST", "/v1/completions", json={"prompt": "a", "max_tokens": 150, "stream": True}
        ):
            document = (await served.client.get("/status")).json()
        assert [one["attempts"] for one in document["requests"]] == [1]
        assert (await served.post("/v1/completions", prompt="a", n=0)).status_code == 400
        document = (await served.client.get("/status")).json()
        assert document["failures_total"] == {"400": 1}

    run(smollm2, test)


def test_since_when_the_series_is_wanted_is_a_number(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        assert (await served.client.get("/status?after=0")).status_code == 200
        response = await served.client.get("/status?after=noon")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "after"

    run(smollm2, test)


def test_the_page_needs_nothing_from_elsewhere(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        for path in ("/", "/ui"):
            response = await served.client.get(path)
            assert (response.status_code, response.headers["location"]) == (307, "ui/")
        page = await served.client.get("/ui/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        linked = re.findall(r'(?:href|src)="([^".#][^"]*)"', page.text)
        assert linked
        for name in FILES:
            asset = await served.client.get(f"/ui/{name}")
            assert asset.status_code == 200, name
            assert asset.headers["cache-control"] == "no-cache"
            assert "content-security-policy" in asset.headers
            linked += [f"{match}" for match in re.findall(r'from "\./([^"]+)"', asset.text)]
            outside = re.findall(r"https?://(?!www\.w3\.org/2000/svg)", asset.text)
            assert outside == [], name
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\b", asset.text)
        assert set(linked) <= set(FILES)
        again = await served.client.get(
            "/ui/style.css",
            headers={"if-none-match": (await served.client.get("/ui/style.css")).headers["etag"]},
        )
        assert again.status_code == 304
        assert (await served.client.get("/ui/nothing.js")).status_code == 404

    run(smollm2, test)


def test_the_page_is_open_and_what_it_shows_is_not(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        app = guarded(served.app, ServeConfig(), ["secret"], GatewayMetrics("tiny"))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            assert (await client.get("/ui/")).status_code == 200
            assert (await client.get("/ui/main.js")).status_code == 200
            assert (await client.get("/status")).status_code == 401
            for path in ("/ui/../status", "/ui/%2e%2e/status", "/ui/..%2fstatus", "/ui//status"):
                assert (await client.get(path)).status_code in (401, 404), path
            bearer = {"authorization": "Bearer secret"}
            assert (await client.get("/status", headers=bearer)).status_code == 200

    run(smollm2, test)


def test_the_page_may_be_left_out(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        assert (await served.client.get("/status")).status_code == 200
        for path in ("/", "/ui", "/ui/", "/ui/main.js"):
            assert (await served.client.get(path)).status_code == 404

    run(smollm2, test, ServeConfig(served_model_name="tiny", ui=False))


def test_every_file_of_the_page_is_packaged() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = pyproject["tool"]["setuptools"]["package-data"]["*"]
    assert "index.html" in FILES
    assert [name for name in FILES if not any(fnmatch(name, one) for one in patterns)] == []
    for name in FILES:
        assert len((UI / name).read_text().splitlines()) <= 400, name

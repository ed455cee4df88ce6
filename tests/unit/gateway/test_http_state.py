"""What a server tells of itself: models, health, readiness, metrics, documentation."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from openai.types import Model
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families

from common.config import DecodeConfig, PrefillConfig, ServeConfig
from common.ids import InstanceId, Role
from common.messages import Expect, FinishReason
from common.text.load import TextModel
from launch.gateway.api.other_endpoints import ENDPOINTS
from tests.unit.gateway.scripted import MAX_MODEL_LEN, Said, Served, serving, until

COLOCATED = ServeConfig(
    served_model_name="tiny", prefill=PrefillConfig(workers=0), decode=DecodeConfig(workers=1)
)


def says(_expect: Expect, _sample: int) -> Said:
    return [81, 82, 83], FinishReason.LENGTH


def run(
    text: TextModel,
    test: Callable[[Served], Coroutine[Any, Any, None]],
    *,
    worker_joins: bool = True,
    config: ServeConfig = COLOCATED,
) -> None:
    async def whole() -> None:
        async with serving(text, says, worker_joins=worker_joins, config=config) as served:
            await test(served)

    asyncio.run(whole())


def test_ready_when_every_pool_has_a_worker(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.client.get("/ready")
        assert response.status_code == 200
        assert response.json() == {
            "ready": True,
            "draining": False,
            "short": [],
            "prefill": {"up": 0, "workers": 0, "trouble": []},
            "decode": {"up": 1, "workers": 1, "trouble": []},
        }
        served.admission.draining = True
        response = await served.client.get("/ready")
        assert (response.status_code, response.json()["draining"]) == (503, True)
        assert (await served.client.get("/health")).status_code == 200

    run(smollm2, test)


def test_not_ready_names_the_pool_that_is_short(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.client.get("/ready")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json() == {
            "ready": False,
            "draining": False,
            "short": ["prefill"],
            "prefill": {"up": 0, "workers": 2, "trouble": []},
            "decode": {"up": 1, "workers": 1, "trouble": []},
        }

    run(smollm2, test, config=ServeConfig(prefill=PrefillConfig(workers=2)))


def test_a_worker_that_is_lost_is_short(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.engine.lost(InstanceId("1" * 32))
        await until(lambda: not served.engine.workers()[Role.DECODE])
        response = await served.client.get("/ready")
        assert (response.status_code, response.json()["short"]) == (503, ["decode"])

    run(smollm2, test)


def test_models(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        (card,) = (await served.client.get("/v1/models")).json()["data"]
        assert Model.model_validate(card, strict=True).id == "tiny"
        created = card["created"]
        assert card == {
            "id": "tiny",
            "object": "model",
            "created": created,
            "owned_by": "baton",
            "root": "/models/tiny",
            "parent": None,
            "max_model_len": MAX_MODEL_LEN,
            "permission": [
                {
                    "id": "modelperm-tiny",
                    "object": "model_permission",
                    "created": created,
                    "allow_create_engine": False,
                    "allow_sampling": True,
                    "allow_logprobs": True,
                    "allow_search_indices": False,
                    "allow_view": True,
                    "allow_fine_tuning": False,
                    "organization": "*",
                    "group": None,
                    "is_blocking": False,
                }
            ],
        }
        assert (await served.client.get("/v1/models/tiny")).json() == card

    run(smollm2, test, config=replace(COLOCATED, model="/models/tiny"))


def test_text_and_ids(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.post("/tokenize", prompt="one two", return_token_strs=True)
        assert response.json() == {
            "count": 2,
            "max_model_len": MAX_MODEL_LEN,
            "tokens": [537, 827],
            "token_strs": ["one", " two"],
        }
        response = await served.post("/detokenize", tokens=[537, 827])
        assert response.json() == {"prompt": "one two"}
        response = await served.post("/detokenize", tokens=[49152])
        assert response.status_code == 400

    run(smollm2, test)


def test_ids_of_another_model_are_not_told(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})):
            assert (await served.post(path, model="other", **body)).status_code == 404
            assert (await served.post(path, model="tiny", **body)).status_code == 200

    run(smollm2, test)


def test_prefixes_are_forgotten_when_every_worker_says_so(
    smollm2: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.gateway.engine.RESET_S", 0.2)
    monkeypatch.setattr("launch.gateway.engine.RESEND_S", 0.05)

    async def test(served: Served) -> None:
        response = await served.client.post("/reset_prefix_cache")
        assert (response.status_code, response.content) == (200, b"")
        served.worker.deaf = True
        response = await served.client.post("/reset_prefix_cache")
        assert response.status_code == 503
        assert "have not answered in 0.2 s: 11111111" in response.json()["error"]["message"]
        monkeypatch.setattr("launch.gateway.engine.RESET_S", 5.0)
        asked = asyncio.create_task(served.client.post("/reset_prefix_cache"))
        await asyncio.sleep(0.01)
        served.engine.lost(InstanceId("1" * 32))
        assert (await asked).status_code == 200  # who is gone has forgotten

    run(smollm2, test)


def test_metrics_of_a_request(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        await served.complete(prompt="one two", n=2, max_tokens=50)
        await served.events()
        assert (await served.post("/v1/completions", prompt="a", n=0)).status_code == 400
        response = await served.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }
        assert samples["baton:request_success_total", "length", "tiny"] == 3
        assert samples["baton:request_failure_total", "400", "tiny"] == 1
        assert samples["baton:prompt_tokens_total", "tiny"] == 3
        assert samples["baton:prompt_tokens_cached_total", "tiny"] == 6
        assert samples["baton:request_prefill_kv_computed_tokens_count", "tiny"] == 2
        assert samples["baton:request_max_num_generation_tokens_sum", "tiny"] == 6
        assert samples["baton:generation_tokens_total", "tiny"] == 9
        assert samples["baton:time_to_first_token_seconds_count", "tiny"] == 3
        assert samples["baton:inter_token_latency_seconds_count", "tiny"] == 6
        assert samples["baton:e2e_request_latency_seconds_count", "tiny"] == 3
        assert samples["baton:request_decode_time_seconds_count", "tiny"] == 3
        assert samples["baton:request_time_per_output_token_seconds_count", "tiny"] == 3
        assert samples["baton:request_generation_tokens_sum", "tiny"] == 9
        assert samples["baton:request_prompt_tokens_sum", "tiny"] == 3
        assert samples["baton:request_params_max_tokens_sum", "tiny"] == 150
        assert samples["baton:request_params_n_sum", "tiny"] == 3
        assert samples["baton:attempts_total", "tiny"] == 2
        assert samples["baton:num_requests_in_progress", "tiny"] == 0

    run(smollm2, test)


def test_the_documentation_needs_nothing_from_elsewhere(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        page = await served.client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        linked = re.findall(r'(?:href|src|url)[=:] ?"([^"]+)"', page.text)
        assert len(linked) == 4
        for link in linked:
            asset = await served.client.get(f"/{link}")
            assert asset.status_code == 200, link
            assert len(asset.content) > 500
        assert "http" not in page.text

    run(smollm2, test, worker_joins=False)


def test_the_description_is_valid_and_names_every_path(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        document = (await served.client.get("/openapi.json")).json()
        validate(document)
        for path, methods in document["paths"].items():
            for method in methods.keys() & {"get", "post"}:
                response = await served.client.request(
                    method.upper(), path.replace("{name}", "tiny")
                )
                assert response.status_code not in (404, 405), path
        assert set(document["paths"]) >= {
            "/v1/completions",
            "/v1/chat/completions",
            "/v1/responses",
            "/reset_prefix_cache",
            "/v1/models",
            "/v1/models/{name}",
            "/health",
            "/ready",
            "/metrics",
        }

    run(smollm2, test, worker_joins=False)


def test_the_load_is_what_is_in_progress(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        async def load() -> object:
            return (await served.client.get("/load")).json()

        assert await load() == {"server_load": 0}
        served.worker.silent = True
        asked = asyncio.create_task(served.post("/v1/completions", prompt="a"))
        await until(lambda: bool(served.worker.jobs))
        assert await load() == {"server_load": 1}
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    run(smollm2, test)


def test_the_tokenizer_is_told_where_the_operator_says_so(smollm2: TextModel) -> None:
    async def untold(served: Served) -> None:
        response = await served.client.get("/tokenizer_info")
        assert response.status_code == 404
        assert "--enable-tokenizer-info-endpoint" in response.json()["error"]["message"]

    async def told(served: Served) -> None:
        info = (await served.client.get("/tokenizer_info")).json()
        assert info["eos_token"] == "<|im_end|>"
        assert info["added_tokens_decoder"]["2"] == {"content": "<|im_end|>", "special": True}
        assert smollm2.template is not None
        assert info["chat_template"] == smollm2.template.source
        assert info["model_max_length"] == 8192

    run(smollm2, untold)
    run(smollm2, told, config=ServeConfig(enable_tokenizer_info_endpoint=True))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/embeddings", "models here generate text, and give no vectors or scores"),
        ("/flush_cache", "use /reset_prefix_cache"),
        ("/v1/responses/resp_1/cancel", "nothing is stored here"),
        ("/v1/nothing", "/docs lists what there is"),
    ],
)
def test_endpoints_of_other_servers_are_answered(smollm2: TextModel, path: str, says: str) -> None:
    async def test(served: Served) -> None:
        for response in (await served.client.get(path), await served.post(path)):
            assert response.status_code == 404
            told = response.json()["error"]["message"]
            assert told.startswith(f'there is nothing at "{path}"; {says}')

    run(smollm2, test)


def test_no_endpoint_of_others_is_one_of_ours(smollm2: TextModel) -> None:
    config = ServeConfig(enable_tokenizer_info_endpoint=True)

    async def test(served: Served) -> None:
        ours = {getattr(route, "path", "") for route in served.app.routes}
        assert ours & ENDPOINTS.keys() == {"/tokenizer_info"}

    run(smollm2, test, config=config)

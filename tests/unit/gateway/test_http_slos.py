"""SLOs and time limits as a client sees them."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from common.config import ServeConfig
from common.ids import TransferId
from common.messages import Expect, FinishReason, Refused
from common.text.load import TextModel
from tests.unit.gateway.scripted import Said, Served, serving

TIMEOUT = {
    "message": "timeout_s is 0.2, and the answer is not complete; state a longer time, or ask for "
    "fewer tokens",
    "type": "timeout_error",
    "param": "timeout_s",
    "code": 504,
}
LATE = Refused(
    transfer=TransferId("t"), attempt=1, reason="late", retry_after_s=1.7, predicted_ttft_s=1.25
)


def says(_expect: Expect, _sample: int) -> Said:
    return [81, 81, 81], FinishReason.LENGTH


def run(
    text: TextModel,
    test: Callable[[Served], Coroutine[Any, Any, None]],
    config: ServeConfig | None = None,
    says: Callable[[Expect, int], Said] = says,
) -> None:
    async def whole() -> None:
        async with serving(text, says, config=config) as served:
            await test(served)

    asyncio.run(whole())


def slos(served: Served) -> dict[tuple[str, str], float]:
    """(slo, result) -> answers."""
    return {
        (sample.labels["slo"], sample.labels["result"]): sample.value
        for family in text_string_to_metric_families(served.metrics.render().decode())
        for sample in family.samples
        if sample.name == "baton:request_slo_total"
    }


def counted(served: Served, name: str) -> float:
    (line,) = [
        line for line in served.metrics.render().decode().splitlines() if line.startswith(name)
    ]
    return float(line.split()[-1])


# --- SLOs ------------------------------------------------------------------------------------


def test_what_a_request_states_reaches_the_worker(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        await served.complete(slo={"ttft_ms": 60_000, "tpot_ms": 50})
        (expect,) = served.worker.seen
        assert expect.deadline_s == 60.0
        assert (expect.tpot_s, expect.refuse_if_late) == (0.05, True)

    run(smollm2, test)


def test_a_request_that_states_nothing_inherits_the_servers(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        await served.complete()
        await served.complete(slo={"tpot_ms": 20})
        assert [(e.deadline_s, e.tpot_s) for e in served.worker.seen] == [(9.0, 0.04), (9.0, 0.02)]

    run(smollm2, test, ServeConfig(served_model_name="tiny", slo_ttft=9000.0, slo_tpot=40.0))


def test_a_request_that_would_be_late_is_told_so_before_any_work(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.worker.refusal = LATE
        served.worker.turn_s = 0.02  # by then it is late, but who is refused has missed nothing
        for stream in (False, True):
            response = await served.post(
                "/v1/completions", prompt="a", slo={"ttft_ms": 1}, stream=stream
            )
            assert response.status_code == 429
            assert response.headers["retry-after"] == "2"
            assert response.json()["error"] == {
                "message": "the first token is predicted after 1250 ms, and is owed after 1 ms "
                "(slo.ttft_ms, or the server's --slo-ttft); come again later, state a longer time, "
                "or shorten the prompt",
                "type": "rate_limit_error",
                "param": "slo.ttft_ms",
                "code": 429,
            }
        assert counted(served, "baton:request_slo_refused_total") == 2
        assert slos(served) == {}

    run(smollm2, test)


def test_who_would_be_late_on_an_idle_server_is_told_not_to_come_again(
    smollm2: TextModel,
) -> None:
    async def test(served: Served) -> None:
        served.worker.refusal = structs.replace(LATE, retry_after_s=None)
        response = await served.post("/v1/completions", prompt="a", slo={"ttft_ms": 200})
        assert response.status_code == 429
        assert "retry-after" not in response.headers
        assert response.headers["x-should-retry"] == "false"
        message = response.json()["error"]["message"]
        assert message.startswith("even an idle server would take 1250 ms for this prompt")
        assert counted(served, "baton:request_slo_refused_total") == 1

    run(smollm2, test)


def test_what_was_met_and_missed_is_counted(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        await served.complete()
        assert slos(served) == {}
        served.worker.turn_s = 0.02
        await served.complete(n=2, slo={"ttft_ms": 60_000, "tpot_ms": 1})
        assert slos(served) == {("ttft", "met"): 2, ("tpot", "missed"): 2}
        served.worker.silent = True
        late = asyncio.create_task(served.complete(slo={"ttft_ms": 1, "tpot_ms": 60_000}))
        await asyncio.sleep(0.02)
        served.worker.silent = False
        await late
        assert slos(served) == {
            ("ttft", "met"): 2,
            ("tpot", "missed"): 2,
            ("ttft", "missed"): 1,
            ("tpot", "met"): 1,
        }

    run(smollm2, test)


# --- time limits -----------------------------------------------------------------------------


def test_an_answer_that_takes_too_long_is_a_504(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.worker.silent = True
        response = await served.post(
            "/v1/completions", prompt="a", timeout_s=0.2, slo={"ttft_ms": 1}
        )
        assert response.status_code == 504
        assert response.json()["error"] == TIMEOUT
        await asyncio.wait_for(served.worker.ended.wait(), 5)
        assert slos(served) == {("ttft", "missed"): 1}  # it never came
        assert counted(served, 'baton:request_failure_total{model_name="tiny",status="504"}') == 1

    run(smollm2, test)


def test_one_that_nobody_takes_is_a_504_though_it_would_be_streamed(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.worker.deaf = True
        body = {"messages": [{"role": "user", "content": "a"}], "stream": True, "timeout_s": 0.2}
        response = await served.post("/v1/chat/completions", **body)
        assert response.status_code == 504
        assert response.json()["error"] == TIMEOUT

    run(smollm2, test)


def test_a_stream_that_takes_too_long_ends_with_an_error(smollm2: TextModel) -> None:
    def endless(_expect: Expect, _sample: int) -> Said:
        return [81] * 1_000_000, FinishReason.LENGTH

    async def test(served: Served) -> None:
        response = await served.post(
            "/v1/completions", prompt="a", max_tokens=100, stream=True, timeout_s=0.2
        )
        assert response.status_code == 200
        *data, last, done = response.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(last.removeprefix("data: ")) == {"error": TIMEOUT}
        assert len(data) > 5
        await asyncio.wait_for(served.worker.ended.wait(), 5)
        assert not served.worker.jobs

    run(smollm2, test, says=endless)

"""SLOs and time limits with the official client, real workers behind it."""

import openai
import pytest
from openai.types import Completion

from tests.api_client import metrics, until
from tests.servers import RunningServer

pytestmark = pytest.mark.slow
MODEL = "smollm2"
LONG_PROMPT = [(13 * n) % 40_000 + 500 for n in range(900)]  # seconds of prefill
ROLES = ("prefill", "decode")


def counted(server: RunningServer, name: str, **labels: str) -> float:
    wanted = {"model_name": MODEL, **labels}.items()
    values = metrics(server.url).values
    return sum(
        v for (known, own), v in values.items() if known == f"baton:{name}" and wanted <= own
    )


def is_idle(server: RunningServer) -> bool:
    now = metrics(server.url)
    names = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
    return not any(now.total(name, role) for name in names for role in ROLES)


def complete(
    client: openai.OpenAI, prompt: str | list[int] = "Once upon a time", **extra: object
) -> Completion:
    return client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=4, temperature=0, extra_body=extra
    )


def test_a_request_that_would_be_late_is_refused_before_any_work(
    server: RunningServer, client: openai.OpenAI
) -> None:
    complete(client, LONG_PROMPT[:64])  # a chunk: now its cost is known
    before = counted(server, "request_slo_refused_total")
    tokens = metrics(server.url).total("engine_step_tokens_total", "prefill")
    with pytest.raises(openai.RateLimitError) as raised:
        complete(client, LONG_PROMPT, slo={"ttft_ms": 2})
    assert raised.value.param == "slo.ttft_ms"
    assert "even an idle server would take" in str(raised.value)
    assert "owed after 2 ms" in str(raised.value)
    assert "retry-after" not in raised.value.response.headers
    assert counted(server, "request_slo_refused_total") == before + 1  # it was not sent again
    until(lambda: is_idle(server), "the decode side has let go of it, too")
    assert metrics(server.url).total("engine_step_tokens_total", "prefill") < tokens + 900


def test_a_request_whose_tokens_would_be_slow_is_refused(
    server: RunningServer, client: openai.OpenAI
) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="Once upon a time",
        max_tokens=1000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    until(lambda: _is_refused(client), "what a step takes is known", within_s=15)
    before = counted(server, "request_slo_refused_total")
    assert _is_refused(client)
    assert counted(server, "request_slo_refused_total") == before + 1
    stream.close()
    until(lambda: is_idle(server), "all pages given back", within_s=10)
    assert _is_refused(client)  # there is nothing to wait for


def _is_refused(client: openai.OpenAI) -> bool:
    """Of a request that wants a token every millisecond."""
    try:
        complete(client.with_options(max_retries=0), slo={"tpot_ms": 1})
    except openai.RateLimitError as error:
        assert error.param == "slo.tpot_ms"
        assert "even an idle server would take" in str(error)
        assert "retry-after" not in error.response.headers
        assert error.response.headers["x-should-retry"] == "false"
        return True
    return False


def test_a_request_that_is_in_time_is_answered_and_counted(
    server: RunningServer, client: openai.OpenAI
) -> None:
    plain = complete(client).choices[0].text
    met = [counted(server, "request_slo_total", slo=s, result="met") for s in ("ttft", "tpot")]
    owed = complete(client, slo={"ttft_ms": 60_000, "tpot_ms": 60_000}, timeout_s=60)
    assert owed.choices[0].text == plain
    now = [counted(server, "request_slo_total", slo=s, result="met") for s in ("ttft", "tpot")]
    assert now == [n + 1 for n in met]


def test_an_answer_whose_time_is_up_is_a_504_and_all_of_it_is_freed(
    server: RunningServer, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(
            model=MODEL,
            prompt=LONG_PROMPT,
            max_tokens=100,
            extra_body={"ignore_eos": True, "timeout_s": 0.05},
        )
    assert raised.value.status_code == 504
    assert raised.value.param == "timeout_s"
    until(lambda: is_idle(server), "all pages given back", within_s=10)


def test_a_stream_whose_time_is_up_ends_with_an_error(
    server: RunningServer, client: openai.OpenAI
) -> None:
    complete(client)
    stream = client.completions.create(
        model=MODEL,
        prompt="Once upon a time",
        max_tokens=1000,
        stream=True,
        extra_body={"ignore_eos": True, "timeout_s": 2},
    )
    n_events = 0
    with pytest.raises(openai.APIError, match="timeout_s is 2, and the answer is not complete"):
        for _ in stream:
            n_events += 1
    assert n_events > 3
    until(lambda: is_idle(server), "all pages given back", within_s=10)

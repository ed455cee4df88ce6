"""Documents of `GET /status`: of a server just started, and of one at work."""

import msgspec
from msgspec.structs import replace

from launch.gateway.status import (
    Attainment,
    Handoffs,
    Latencies,
    Pages,
    Percentiles,
    PoolStatus,
    Rates,
    RequestStatus,
    Status,
    WorkerStatus,
)

NOTHING = Percentiles(n=0)
NO_PAGES = Pages(total=0, held=0, cached=0, free=0)
NO_POOL = PoolStatus(
    up=0,
    workers=1,
    running=0,
    waiting=0,
    queued_tokens=0,
    pages=NO_PAGES,
    tokens_per_s=0.0,
    restarts=0,
)
STARTING = msgspec.convert(
    {
        "unix_s": 1e9,
        "uptime_s": 2.5,
        "window_s": 0.0,
        "model": "m",
        "ready": False,
        "draining": False,
        "versions": {"baton": "0.1.0"},
        "in_progress": 0,
        "workers": [
            WorkerStatus(
                name="prefill-0",
                role="prefill",
                state="starting",
                instance=None,
                pid=None,
                restarts=0,
                trouble="exit code 1: no memory",
            )
        ],
        "pools": {"prefill": NO_POOL, "decode": NO_POOL},
        "slo": Attainment(ttft_s=None, tpot_s=None, judged=0),
        "latency": Latencies(ttft_s=NOTHING, tpot_s=NOTHING, itl_s=NOTHING, e2e_s=NOTHING),
        "handoff": Handoffs(per_s=0.0, seconds=NOTHING),
        "rates": Rates(
            answers_per_s=0.0, failures_per_s=0.0, prompt_tokens_per_s=0.0, output_tokens_per_s=0.0
        ),
        "failures": {},
        "failures_total": {},
        "requests": [],
        "series": [],
    },
    Status,
)
AT_WORK = replace(
    STARTING,
    uptime_s=11_520.0,
    window_s=60.0,
    ready=True,
    in_progress=12,
    workers=[
        WorkerStatus(
            name="decode-0",
            role="decode",
            state="up",
            instance="abc",
            pid=12,
            restarts=2,
            trouble="",
            uptime_s=62.0,
            heartbeat_age_s=0.25,
            running=8,
            waiting=1,
            pages=Pages(total=2848, held=1200, cached=48, free=1600),
            step_s=0.0123,
            tokens_per_s=651.7,
            busy_share=0.875,
            memory_bytes=1_570_000_000,
        )
    ],
    pools={
        "prefill": NO_POOL,
        "decode": replace(
            NO_POOL,
            up=1,
            running=8,
            waiting=1,
            queued_tokens=12_000,
            pages=Pages(total=2848, held=1200, cached=48, free=1600),
            tokens_per_s=651.7,
            restarts=2,
        ),
    },
    slo=Attainment(ttft_s=0.2, tpot_s=0.05, judged=40, met=0.9, ttft_met=0.95, tpot_met=0.925),
    latency=Latencies(
        ttft_s=Percentiles(n=40, p50=0.0512, p90=0.25, p99=12.5),
        tpot_s=Percentiles(n=40, p50=0.012, p90=0.02, p99=0.03),
        itl_s=Percentiles(n=900, p50=0.012, p90=0.02, p99=0.04),
        e2e_s=Percentiles(n=40, p50=1.5, p90=3.0, p99=20.0),
    ),
    handoff=Handoffs(per_s=2.5, seconds=Percentiles(n=150, p50=0.004, p90=0.008, p99=0.02)),
    rates=Rates(
        answers_per_s=2.6,
        failures_per_s=0.05,
        prompt_tokens_per_s=640.0,
        output_tokens_per_s=330.5,
    ),
    failures={"429": 3, "503": 0},
    requests=[
        RequestStatus(
            id=f"r{n}",
            state="stop",
            arrived_unix_s=1e9,
            prompt_tokens=256,
            max_tokens=128,
            n=1,
            output_tokens=100,
            attempts=1,
            preemptions=0,
            decision="remote",
            reason="cost",
            prefill="prefill-0",
            decode="decode-0",
            routed_s=0.001,
            prefill_began_s=0.002,
            first_token_s=0.05,
            transfer_began_s=0.03,
            transfer_ended_s=0.05,
            decode_began_s=0.051,
            ended_s=1.25,
            tpot_s=0.012,
            detail="",
        )
        for n in range(9)
    ],
)

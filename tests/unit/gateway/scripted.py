"""The real application over a worker whose tokens a test chooses: the worker's part of the protocol
is played over real sockets, everything else is the gateway's own."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from msgspec import structs
from starlette.applications import Starlette

from common.config import ServeConfig
from common.engine.events import Received
from common.engine.links import Links
from common.ids import InstanceId, Role, TransferId
from common.log import RequestLog
from common.messages import (
    PROTOCOL,
    Accepted,
    End,
    Expect,
    FinishReason,
    Heartbeat,
    Hello,
    Limits,
    Listed,
    ModelIdentity,
    Peer,
    Phase,
    PrefixCacheReset,
    Refused,
    RegionKey,
    ResetPrefixCache,
    TokenLogprob,
    TokenRun,
    Tokens,
)
from common.metrics import GatewayMetrics
from common.rundir import host_id
from common.text.grammar import Grammars, GrammarTokenizer
from common.text.load import TextModel
from common.wire import Mailbox
from launch.gateway.api.admission import Admission
from launch.gateway.attempts import GatewayOptions
from launch.gateway.engine import Engine
from launch.gateway.http import create_app

MAX_MODEL_LEN = 200
CACHED_TOKENS = 3  # that the worker always claims
TURN_S = 0.001
FULL = Refused(transfer=TransferId(""), attempt=0, reason="full", retry_after_s=1.0)
Said = tuple[Sequence[int], FinishReason]
Says = Callable[[Expect, int], Said]
"""(request, sample) -> all its tokens, and why they end."""


@dataclass(slots=True)
class _Job:
    """A request, one token of each sample a turn."""

    expect: Expect
    says: dict[int, Said]
    sent: int = 0

    def turn(self) -> list[TokenRun]:
        at, self.sent = self.sent, self.sent + 1
        return [
            self._run(sample, tokens[at], at, finish if at + 1 == len(tokens) else None)
            for sample, (tokens, finish) in self.says.items()
            if at < len(tokens)
        ]

    def _run(self, sample: int, token: int, at: int, finish: FinishReason | None) -> TokenRun:
        params, first = self.expect.params, at == 0
        wants_prompt = first and params.prompt_logprobs is not None
        return TokenRun(
            self.expect.transfer,
            self.expect.attempt,
            sample,
            at,
            (token,),
            finish,
            () if params.logprobs is None else (logprob(token, params.logprobs),),
            CACHED_TOKENS if first else None,
            self._prompt_logprobs() if wants_prompt else None,
        )

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...]:
        n_top = self.expect.params.prompt_logprobs or 0
        return (None, *(logprob(token, n_top) for token in self.expect.prompt[1:]))


def logprob(token: int, n_top: int) -> TokenLogprob:
    """What the worker claims of any token: it was the most likely, those by its side came next."""
    top = tuple(range(token, token + n_top))
    return TokenLogprob(token, -0.25, 1, top, tuple(-0.25 * (n + 1) for n in range(n_top)))


@dataclass(slots=True, eq=False)
class Worker:
    """A decode worker that computes nothing."""

    links: Links
    says: Says
    refusal: Refused | None = None  # of everything; its ids are replaced
    silent: bool = False  # accepts, and sends nothing
    deaf: bool = False  # does not even answer
    turn_s: float = TURN_S
    most_jobs: int = 1000  # it refuses more
    most_seen: int = 0  # jobs at a time
    jobs: dict[TransferId, _Job] = field(default_factory=dict[TransferId, _Job])
    seen: list[Expect] = field(default_factory=list[Expect])
    gateway: InstanceId | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # the gateway has ended a request

    async def run(self) -> None:
        beat_at = 0.0
        while True:
            now = time.monotonic()
            for event in self.links.hear(now):
                if isinstance(event, Received) and not self.deaf:
                    self._take(event, now)
            runs = [] if self.silent else [run for job in self.jobs.values() for run in job.turn()]
            if runs and self.gateway is not None:
                self.links.send(self.gateway, Tokens(runs=tuple(runs)), now)
            if now >= beat_at and self.gateway is not None:
                beat_at = now + 0.25
                listed = tuple(
                    Listed(t, j.expect.attempt, Phase.ACCEPTED) for t, j in self.jobs.items()
                )
                self.links.send(self.gateway, Heartbeat(transfers=listed), now)
            await asyncio.sleep(self.turn_s)

    def _take(self, event: Received, now: float) -> None:
        self.gateway = event.sender
        match event.message:
            case Expect() as expect:
                self.seen.append(expect)
                self.links.send(event.sender, self._answer(expect), now)
            case End(transfer=transfer):
                self.jobs.pop(transfer, None)
                self.ended.set()
            case ResetPrefixCache(number=number):
                self.links.send(event.sender, PrefixCacheReset(number=number), now)
            case _:
                pass

    def _answer(self, expect: Expect) -> Accepted | Refused:
        refusal = self.refusal
        if refusal is None and len(self.jobs) >= self.most_jobs:
            refusal = FULL
        if refusal is not None:
            return structs.replace(refusal, transfer=expect.transfer, attempt=expect.attempt)
        says = {resume.sample: self.says(expect, resume.sample) for resume in expect.samples}
        self.jobs[expect.transfer] = _Job(expect, says)
        self.most_seen = max(self.most_seen, len(self.jobs))
        return Accepted(transfer=expect.transfer, attempt=expect.attempt)


@dataclass(frozen=True, slots=True)
class Served:
    """What a test talks to, and what it looks into."""

    app: Starlette
    client: httpx.AsyncClient
    worker: Worker
    engine: Engine
    admission: Admission
    metrics: GatewayMetrics

    async def post(self, path: str, **body: object) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def complete(self, **body: object) -> dict[str, Any]:
        """A completion that must be answered."""
        response = await self.post("/v1/completions", **{"prompt": "a", "max_tokens": 100, **body})
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def events(self, path: str = "/v1/completions", **body: object) -> list[dict[str, Any]]:
        """Those of a stream that ends as it should."""
        asked = {"max_tokens": 100, "stream": True, **body}
        if path == "/v1/completions":
            asked.setdefault("prompt", "a")
        response = await self.client.post(path, json=asked)
        assert response.status_code == 200, response.text
        *data, done = response.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        return [dict(json.loads(text.removeprefix("data: "))) for text in data]


@asynccontextmanager
async def serving(
    text: TextModel, says: Says, *, worker_joins: bool = True, config: ServeConfig | None = None
) -> AsyncIterator[Served]:
    """A gateway that is ready, its one worker beside it in this event loop."""
    config = config or ServeConfig(served_model_name="tiny")
    with tempfile.TemporaryDirectory(prefix="bg-") as run_dir:
        gateway, worker = InstanceId("9" * 32), InstanceId("1" * 32)
        box = Mailbox(gateway, Role.GATEWAY, run_dir=Path(run_dir))
        metrics = GatewayMetrics("tiny")
        engine = Engine(
            box,
            Links(box, _hello(box, gateway, Role.GATEWAY)),
            GatewayOptions(max_requests=config.max_waiting_requests),
            request_log=RequestLog(None, gateway, Role.GATEWAY),
            metrics=metrics,
        )
        engine.start()
        own = Mailbox(worker, Role.DECODE, run_dir=Path(run_dir))
        played = Worker(Links(own, _hello(own, worker, Role.DECODE)), says)
        admission = Admission(config.max_waiting_requests, metrics)
        grammars = Grammars(lambda: GrammarTokenizer(text))
        app = create_app(engine, text, config, metrics, admission, grammars)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        playing: asyncio.Task[None] | None = None
        try:
            if worker_joins:
                played.links.join(box.endpoints[0], time.monotonic())
                playing = asyncio.create_task(played.run())
                await engine.up({Role.DECODE: 1})
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
                yield Served(app, client, played, engine, admission, metrics)
            assert (admission.in_progress, admission.held_tokens) == (0, 0)
            assert engine.n_requests == 0
        finally:
            engine.close()
            if playing is not None:
                playing.cancel()
                with suppress(asyncio.CancelledError):
                    await playing
            own.close()
            box.close()


@asynccontextmanager
async def waiting_worker(run_dir: Path) -> AsyncIterator[Peer]:
    """One that joins nobody, and can be dialled."""
    instance = InstanceId("1" * 32)
    box = Mailbox(instance, Role.DECODE, run_dir=run_dir)
    hello = _hello(box, instance, Role.DECODE)
    worker = Worker(Links(box, hello), lambda _expect, _sample: ([], FinishReason.LENGTH))
    running = asyncio.create_task(worker.run())
    try:
        yield hello.peer
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        box.close()


async def until(condition: Callable[[], bool]) -> None:
    """Of what no event tells."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def _hello(box: Mailbox, instance: InstanceId, role: Role) -> Hello:
    peer = Peer(instance=instance, role=role, host=host_id(), endpoints=box.endpoints)
    if role is Role.GATEWAY:
        return Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
    return Hello(
        protocol=PROTOCOL,
        peer=peer,
        model=ModelIdentity(
            name="tiny", fingerprint="f", kv_dtype="float32", page_layout="p", kernel_path="k"
        ),
        limits=Limits(
            n_pages=1000,
            page_tokens=16,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            max_waiting=256,
        ),
        pool=RegionKey(
            owner=instance, host=host_id(), region=0, n_pages=1000, page_bytes=4096, doors={}
        ),
    )

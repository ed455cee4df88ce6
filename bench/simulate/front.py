"""The virtual gateway process, and the clients behind it."""

from dataclasses import dataclass, field, replace
from typing import Any

from bench.simulate.model import Answer, expected, expected_scores
from bench.simulate.process import Process, World
from bench.simulate.worker import FINGERPRINT
from common.engine.events import Send
from common.ids import HostId, InstanceId, Role, TransferId
from common.kv.prefix import page_hashes
from common.messages import PROTOCOL, Hello, Peer
from common.params import TokenLogprob
from launch.gateway.attempts import GatewayOptions
from launch.gateway.core import GatewayCore
from launch.gateway.events import Admitted, Delta, Quit, Rejected, StopSample, Submit
from launch.gateway.transfers import Generate


@dataclass(eq=False)
class Client:
    """One request, and what has come back of it. Every delta is checked as it comes."""

    request: Generate
    asked_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    cached_tokens: int | None = None
    scores: tuple[TokenLogprob | None, ...] | None = None
    answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    stopped: set[int] = field(default_factory=set[int])  # samples
    error: Exception | None = None
    quitted: bool = False

    @property
    def over(self) -> bool:
        """It has all it will get."""
        ended = {n for n, answer in self.answers.items() if answer.finish is not None}
        everything = len(ended | self.stopped) == self.request.n
        return self.quitted or self.error is not None or everything

    def take(self, delta: Delta, now: float) -> None:
        assert not self.quitted, "a delta after the client has left"
        assert self.error is None, "a delta after an error"
        assert delta.sample not in self.stopped, "a delta of a stopped sample"
        if not self.answers:
            self.first_token_at = now
            self.cached_tokens, self.scores = delta.cached_tokens, delta.prompt_logprobs
            assert self.cached_tokens is not None
        self.last_token_at = now
        answer = self.answers.setdefault(delta.sample, Answer([], None, []))
        assert delta.index == len(answer.tokens), f"{delta}: {len(answer.tokens)} had"
        assert answer.finish is None, f"{delta}: after the end"
        answer.tokens.extend(delta.tokens)
        answer.logprobs.extend(delta.logprobs)
        self.answers[delta.sample] = replace(answer, finish=delta.finish)

    def check(self) -> None:
        """What has come is what an undisturbed single process would say, up to here."""
        assert self.scores == expected_scores(self.request) or not self.answers
        for n, answer in self.answers.items():
            whole = expected(self.request, n)
            n_had = len(answer.tokens)
            assert answer.tokens == whole.tokens[:n_had], f"{self.request.request}/{n}"
            assert answer.logprobs == whole.logprobs[:n_had], f"{self.request.request}/{n}"
            if answer.finish is not None:
                assert answer == whole, f"{self.request.request}/{n}"


class GatewayProcess(Process):
    """Listens at the address that every worker joins."""

    def __init__(self, world: World, name: str) -> None:
        instance = InstanceId(name)
        draw = world.random
        self.core = GatewayCore(
            GatewayOptions(credit_tokens=world.shape.credit_tokens),
            lambda: TransferId(f"t{draw.getrandbits(64):016x}"),
        )
        hello = Hello(
            protocol=PROTOCOL,
            peer=Peer(
                instance=instance, role=Role.GATEWAY, host=HostId("h"), endpoints=("gateway",)
            ),
            model=None,
            limits=None,
            pool=None,
        )
        self.clients: dict[str, Client] = {}
        super().__init__(world, hello, self.core)
        self.ring()

    def submit(self, request: Generate) -> None:
        page_tokens = self.world.shape.page_tokens
        hashes = page_hashes(
            request.prompt, page_tokens, fingerprint=FINGERPRINT, salt=request.salt
        )
        self.clients[request.request] = Client(request, self.world.clock.now)
        self.post(Submit(replace(request, hashes=hashes)))

    def quit(self, request: Generate) -> None:
        client = self.clients.get(request.request)
        if client is not None and not client.over:
            client.quitted = True
            self.post(Quit(request.request))

    def stop_sample(self, request: Generate, sample: int) -> None:
        """The text side has met a stop string."""
        client = self.clients[request.request]
        if not client.over and sample not in client.stopped:
            client.stopped.add(sample)
            self.post(StopSample(request.request, sample))

    def act(self, action: Any) -> None:  # noqa: ANN401
        now = self.world.clock.now
        match action:
            case Send(peer, message):
                self.links.send(peer, message, now)
            case Admitted(request):
                assert self.clients[request].admitted_at is None
                self.clients[request].admitted_at = now
            case Rejected(request, error):
                assert not self.clients[request].over
                self.clients[request].error = error
            case Delta():
                client = self.clients[action.request]
                if not client.quitted and action.sample not in client.stopped:
                    client.take(action, now)
            case _:
                pass

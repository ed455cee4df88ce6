"""The gateway of a timed run, and the clients behind it, who note when their tokens come."""

from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from msgspec import structs

from bench.simulate.shape import Shape
from bench.simulate.timed_process import Exchange, TimedProcess
from bench.simulate.worker import FINGERPRINT
from common.engine.events import Note, Received, Send
from common.ids import HostId, InstanceId, Role, TransferId
from common.kv.prefix import page_hashes
from common.messages import PROTOCOL, AnyMessage, Expect, Hello, Peer, Prefill, TokenRun, Tokens
from common.params import FinishReason, SamplingParams
from launch.gateway.attempts import GatewayOptions
from launch.gateway.core import GatewayCore
from launch.gateway.events import Delta, Rejected, Submit
from launch.gateway.fleet import Router
from launch.gateway.transfers import Generate, RequestId, Slo

NAME = InstanceId("gateway")


class Asked(Protocol):
    """What a client asks for."""

    @property
    def prompt(self) -> tuple[int, ...]: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...


@dataclass(slots=True, eq=False)
class Client:
    """When its tokens came, in seconds from its arrival."""

    arrived: float
    transfer: TransferId | None = None  # known as it is received
    first_s: float | None = None
    second_s: float | None = None
    last_s: float | None = None
    cached_tokens: int = 0
    refused: bool = False

    def take(self, delta: Delta, now: float, second_at: float | None) -> None:
        """`second_at`: when the second token would have come alone, if it has not."""
        came_s = now - self.arrived
        if delta.index == 0:
            self.first_s = came_s
            self.cached_tokens = delta.cached_tokens or 0
        if delta.index <= 1 < delta.index + len(delta.tokens):
            self.second_s = came_s if second_at is None else second_at - self.arrived
        if delta.finish is not None:
            self.last_s = came_s


class TimedGateway(TimedProcess):
    """Text is made tokens and tokens text in a fixed time."""

    def __init__(
        self, exchange: Exchange, shape: Shape, random: Random, router: Router | None = None
    ) -> None:
        """`router`: None: the product's own."""
        core = GatewayCore(
            GatewayOptions(
                credit_tokens=shape.credit_tokens,
                admission=shape.admission,
                heartbeat_s=shape.heartbeat_s,
                disaggregate=shape.disaggregate,
            ),
            lambda: TransferId(f"t{random.getrandbits(64):016x}"),
        )
        if router is not None:
            core.fleet.router = router
        peer = Peer(instance=NAME, role=Role.GATEWAY, host=HostId("h"), endpoints=(NAME,))
        hello = Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
        super().__init__(exchange, hello, core)
        self._shape = shape
        self.clients: dict[int, Client] = {}
        self._asked: dict[int, Asked] = {}
        self._surprising: set[TransferId] = set()  # their lengths are not the gateway's to know
        self.n_over = 0

    def ask(self, number: int, asked: Asked) -> None:
        """A client has sent its request."""
        self.clients[number] = Client(self._clock.now)
        self._asked[number] = asked
        self._clock.at(self._shape.request_s, lambda: self._submit(number, asked))

    def _submit(self, number: int, asked: Asked) -> None:
        shape = self._shape
        hashes = ()
        if shape.caching:
            hashes = page_hashes(asked.prompt, shape.page_tokens, fingerprint=FINGERPRINT, salt="")
        request = Generate(
            request=RequestId(str(number)),
            prompt=asked.prompt,
            n=1,
            params=SamplingParams(
                max_tokens=asked.max_tokens or asked.output_tokens, seed=number, temperature=0.0
            ),
            hashes=hashes,
            slo=Slo(ttft_s=asked.ttft_s, tpot_s=asked.tpot_s),
        )
        self.hear(Submit(request))

    def hear(self, event: Any) -> None:  # noqa: ANN401
        match event:
            case Received(sender, Tokens(runs=runs)) if self._surprising:
                super().hear(Received(sender, Tokens(runs=tuple(map(self._as_stopped, runs)))))
            case _:
                super().hear(event)

    def _with_length(self, message: AnyMessage) -> AnyMessage:
        """Devices draw no end: workers are told an answer's length. A gateway that does not know it
        is told that the model ended it."""
        if not isinstance(message, Prefill | Expect):
            return message
        asked = self._asked[message.params.seed]
        if asked.max_tokens is None:
            return message
        self._surprising.add(message.transfer)
        params = structs.replace(message.params, max_tokens=asked.output_tokens)
        return structs.replace(message, params=params)

    def _as_stopped(self, run: TokenRun) -> TokenRun:
        if run.finish is not FinishReason.LENGTH or run.transfer not in self._surprising:
            return run
        return structs.replace(run, finish=FinishReason.STOP)

    def act(self, action: Any) -> None:  # noqa: ANN401
        match action:
            case Send(to, message):
                self.send(to, self._with_length(message))
            case Delta():
                self._take(action)
            case Note(name="received", transfer=transfer, fields=fields):
                self.clients[int(fields["request"])].transfer = transfer
            case Rejected(request):
                self.clients[int(request)].refused = True
                self.n_over += 1
            case _:
                pass

    def _take(self, delta: Delta) -> None:
        client, shape = self.clients[int(delta.request)], self._shape
        second_at = None
        if delta.index <= 1 < delta.index + len(delta.tokens) and client.transfer is not None:
            drawn_at = self._exchange.second_at.pop(client.transfer, None)
            if drawn_at is not None:
                second_at = drawn_at + shape.message_s + shape.token_s
        client.take(delta, self._clock.now + shape.token_s, second_at)
        self.n_over += delta.finish is not None

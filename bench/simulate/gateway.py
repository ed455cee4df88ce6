"""The virtual gateway process."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from bench.simulate.client import Client
from bench.simulate.laws import StaleAttempts, require
from bench.simulate.model import EXACT
from bench.simulate.process import Process, World
from bench.simulate.promises import OpenAttempts
from bench.simulate.worker import FINGERPRINT
from common.engine.events import Received, Send
from common.ids import HostId, InstanceId, Role, TransferId
from common.kv.prefix import page_hashes
from common.messages import PROTOCOL, Heartbeat, Hello, Peer, Progress
from launch.gateway.attempts import GatewayOptions
from launch.gateway.core import GatewayCore
from launch.gateway.events import Admitted, Delta, Quit, Rejected, StopSample, Submit
from launch.gateway.health import is_hung
from launch.gateway.transfers import Generate

ADDRESS = "gateway"
HUNG_AFTER_S = 0.5  # passes take milliseconds


class GatewayProcess(Process):
    """Listens at the address that every worker joins, and has the clients behind it."""

    def __init__(self, world: World, name: str) -> None:
        draw = world.random
        self.core = GatewayCore(
            GatewayOptions(
                credit_tokens=world.shape.credit_tokens,
                heartbeat_s=world.shape.heartbeat_s,
                disaggregate=world.shape.disaggregate,
            ),
            lambda: TransferId(f"t{draw.getrandbits(64):016x}"),
        )
        peer = Peer(
            instance=InstanceId(name), role=Role.GATEWAY, host=HostId("h"), endpoints=(ADDRESS,)
        )
        hello = Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
        self.clients: dict[str, Client] = {}
        self._attempts, self._open = StaleAttempts(), OpenAttempts()
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
        client = self.clients.get(request.request)
        if client is not None and client.stop(sample):
            self.post(StopSample(request.request, sample))

    def kill(self) -> None:
        super().kill()
        for client in self.clients.values():
            client.cut_off = client.cut_off or not client.over

    def judge(self, events: Sequence[Any], actions: Sequence[Any]) -> None:
        self._attempts.stepped(events, actions, self.core.stale_messages)
        self._open.stepped(events, actions)
        for event in events:
            match event:
                case Received(sender, Heartbeat(progress=Progress() as progress)):
                    if is_hung(progress, HUNG_AFTER_S):
                        self.links.lost(sender, self.world.clock.now)
                        self.world.on_hung(sender)
                case _:
                    pass

    def knows(self, worker: InstanceId, transfer: TransferId, attempt: int) -> bool:
        return self.core.knows(worker, transfer, attempt)

    @property
    def _drawing(self) -> Collection[int]:
        """Attempts whose tokens differ."""
        if self.world.shape.rounding:
            return range(1, self._attempts.n_opened + 1)
        return (EXACT,)

    def act(self, action: Any) -> None:  # noqa: ANN401
        now = self.world.clock.now
        match action:
            case Send(peer, message):
                self.links.send(peer, message, now)
            case Admitted(request):
                require(self.clients[request].admitted_at is None, f"{request} is admitted twice")
                self.clients[request].admitted_at = now
            case Rejected(request, error):
                client = self.clients[request]
                require(client.quitted or not client.over, f"{request} is rejected after its end")
                client.error = error
            case Delta():
                client = self.clients[action.request]
                if not client.quitted and action.sample not in client.stopped:
                    client.take(action, now, self._drawing)
            case _:
                pass

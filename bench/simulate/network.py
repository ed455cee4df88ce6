"""Links between virtual processes, where messages are lost, overtake each other and come again; and
the mailboxes at their ends, which hear them in order or not at all, as those of `common.wire` do.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec

from bench.simulate.clock import Clock
from bench.simulate.shape import FAIR, Weather
from common.ids import InstanceId, Role
from common.messages import AnyMessage, Hello, ToDecode, ToGateway, ToPrefill
from common.wire import UNNUMBERED, Numbers

ANYONE = InstanceId("")
HEARD_BY = {Role.PREFILL: ToPrefill, Role.DECODE: ToDecode, Role.GATEWAY: ToGateway}
Way = tuple[InstanceId, InstanceId]
Frame = tuple[InstanceId, bytes, int]  # whom it is meant for, the message, its number


class Network:
    """Who listens at which address, and what becomes of messages on their way."""

    def __init__(self, clock: Clock, random: Random, high_water: int) -> None:
        self.clock = clock
        self.random = random
        self.weather: Weather = FAIR
        self.bound: dict[str, VirtualMailbox] = {}
        self.counts: Counter[str] = Counter()
        self._high_water = high_water
        self._cut_until: dict[Way, float] = defaultdict(float)
        self._last_arrival: dict[Way, float] = {}
        self._calm_at = 0.0
        self.on_way: Counter[Way] = Counter()  # sent and not received

    def cut(self, sender: InstanceId, to: InstanceId, seconds: float) -> None:
        """One way."""
        self._cut_until[sender, to] = self.clock.now + seconds

    def is_cut(self, sender: InstanceId, to: InstanceId) -> bool:
        return self.clock.now < self._cut_until.get((sender, to), 0.0)

    def heal(self) -> None:
        self._cut_until.clear()
        if not self.weather.is_calm:
            self._calm_at = self.clock.now + self.weather.lingers_s
        self.weather = FAIR

    @property
    def calm_since(self) -> float | None:
        """Since when every message comes, and soon; None: not now."""
        is_calm = self.weather.is_calm and self.clock.now >= self._calm_at
        return self._calm_at if is_calm else None

    def is_full(self, sender: InstanceId, to: InstanceId) -> bool:
        return self.on_way[sender, to] >= self._high_water

    def post(self, sender: InstanceId, to: "VirtualMailbox", frame: Frame) -> None:
        draw, weather, now = self.random, self.weather, self.clock.now
        way = (sender, to.instance)
        if self.is_cut(*way) or draw.random() < weather.drop:
            self.counts["lost"] += 1
            return
        arrival = now + draw.uniform(0.0001, 0.005)
        if draw.random() < weather.delay:
            self.counts["delayed"] += 1
            arrival += draw.uniform(0.0, weather.delay_s)
        if draw.random() < weather.reorder:
            self.counts["reordered"] += 1
            arrival += draw.uniform(0.0, weather.delay_s)
        else:
            arrival = max(arrival, self._last_arrival.get(way, 0.0))
            self._last_arrival[way] = arrival
        self.on_way[way] += 1
        self.clock.at(arrival - now, lambda: to.arrive(sender, frame))
        if draw.random() < weather.repeat:
            self.counts["repeated"] += 1
            again_s = arrival - now + draw.uniform(0.0, weather.delay_s)
            self.clock.at(again_s, lambda: self._again(sender, to, frame))

    def _again(self, sender: InstanceId, to: "VirtualMailbox", frame: Frame) -> None:
        self.on_way[sender, to.instance] += 1
        to.arrive(sender, frame)


@dataclass(eq=False)
class VirtualMailbox:
    """The calls of `common.wire.Mailbox` that `Links` makes."""

    network: Network
    instance: InstanceId
    role: Role
    endpoint: str
    ring: Callable[[], None]
    counts: Counter[str] = field(default_factory=Counter[str])
    _addresses: dict[InstanceId, str] = field(default_factory=dict[InstanceId, str])
    _heard: Numbers = field(default_factory=Numbers)
    _n_sent: int = 0
    _inbox: list[tuple[InstanceId, AnyMessage]] = field(
        default_factory=list[tuple[InstanceId, AnyMessage]]
    )

    def __post_init__(self) -> None:
        self.network.bound[self.endpoint] = self
        self._decoder = msgspec.msgpack.Decoder(HEARD_BY[self.role])

    def connect(self, peer: InstanceId, endpoint: str, *, watched: bool = False) -> bool:  # noqa: ARG002
        self._addresses[peer] = endpoint
        return True

    def failure(self, _peer: InstanceId) -> str:
        return ""

    def rename(self, old: InstanceId, new: InstanceId) -> None:
        self._addresses[new] = self._addresses.pop(old)

    def disconnect(self, peer: InstanceId) -> None:
        self._addresses.pop(peer, None)

    def send(self, peer: InstanceId, message: AnyMessage, *, to: InstanceId | None = None) -> bool:
        network = self.network
        other = network.bound.get(self._addresses.get(peer, "nowhere"))
        if other is None or network.is_full(self.instance, other.instance):
            network.counts["unsent"] += 1
            return False
        kind = type(message).__name__
        network.counts[kind] += 1
        self._n_sent += 1
        to = peer if to is None else to
        network.post(self.instance, other, (to, msgspec.msgpack.encode(message), self._n_sent))
        return True

    def arrive(self, sender: InstanceId, frame: Frame) -> None:
        message = self._decoder.decode(frame[1])
        if self._is_due(sender, frame, message):
            self._inbox.append((sender, message))
            self.ring()
        else:
            self.network.on_way[sender, self.instance] -= 1

    def _is_due(self, sender: InstanceId, frame: Frame, message: AnyMessage) -> bool:
        to, _, number = frame
        if to != self.instance and not (to == ANYONE and isinstance(message, Hello)):
            return False
        if isinstance(message, UNNUMBERED) or self._heard.is_news(sender, number):
            return True
        self.network.counts["late"] += 1
        return False

    def receive(self) -> list[tuple[InstanceId, AnyMessage]]:
        messages, self._inbox = self._inbox, []
        for sender, _ in messages:
            self.network.on_way[sender, self.instance] -= 1
        return messages

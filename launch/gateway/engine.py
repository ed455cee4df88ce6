"""The gateway's core as an asyncio object: submit a prompt, iterate over its tokens.

A thin shell: it moves messages between the sockets and the core, and deltas between the core and
the streams. All calls come from the event loop's thread. Must decide nothing.
"""

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from common.engine.events import Event, Note, PeerDown, PeerUp, Received, Send
from common.engine.links import Links
from common.errors import BatonError, ClientError, InvariantBroken, PeerError
from common.ids import InstanceId, PageHash, Role, TransferId
from common.kv.prefix import page_hashes, pages_fingerprint
from common.log import RequestLog
from common.messages import (
    Expect,
    Heartbeat,
    Metrics,
    PrefixCacheReset,
    Progress,
    ResetPrefixCache,
    Snapshot,
)
from common.metrics import GatewayMetrics
from common.wire import Mailbox
from launch.gateway.arrival import Arrival
from launch.gateway.attempts import GatewayOptions
from launch.gateway.core import GatewayCore
from launch.gateway.events import (
    Admitted,
    Crashed,
    Delta,
    GatewayAction,
    GatewayEvent,
    Quit,
    Rejected,
    StopSample,
    Submit,
)
from launch.gateway.fleet import Fleet
from launch.gateway.health import is_hung
from launch.gateway.history import History
from launch.gateway.transfers import Generate, RequestId
from launch.gateway.watchers import Watchers

MAX_UNREAD_TOKENS = 65_536
"""Of a prompt's answers, alternatives to tokens included: what waits for a slow reader."""
RESET_S = 5.0  # for every worker to answer that it has forgotten
RESEND_S = 0.5


@dataclass(slots=True, eq=False)
class _Reset:
    """Of the workers' prefix caches."""

    awaited: set[InstanceId]
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def answered(self, worker: InstanceId) -> None:
        self.awaited.discard(worker)
        if not self.awaited:
            self.done.set()


class Stream:
    """The answer to one prompt, as its reader sees it. Deltas of its samples come interleaved."""

    def __init__(self, engine: "Engine", request: RequestId, arrived: Arrival) -> None:
        self._engine = engine
        self._request = request
        self._deltas: list[Delta] = []
        self._n_unread: int | None = None  # tokens in them; None: nobody has begun to read
        self._error: BatonError | None = None
        self._arrived = arrived
        self.is_admitted = False  # every worker has accepted

    async def admitted(self) -> None:
        """Until every worker has accepted. Raises the BatonError that the request ended with."""
        while not (self.is_admitted or self._deltas):
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> Sequence[Delta]:
        """What has come since the last call. The caller knows from it when it has all.

        Raises the BatonError that ended the answer early, after the deltas before it.
        """
        deltas, self._deltas = self._deltas, []
        self._n_unread = 0
        if self._error is not None:
            if not deltas:
                raise self._error
            self._arrived.set()  # the error is next
        return deltas

    def stop(self, sample: int) -> None:
        """No more of this sample: its text met a stop string."""
        self._engine.post(StopSample(self._request, sample))

    def quit(self) -> None:
        """No more of anything: the client is gone, or has all. Idempotent; always to be called."""
        self._engine.forget(self._request)

    def feed(self, action: Admitted | Rejected | Delta) -> None:
        """The engine's: something has come for this stream."""
        match action:
            case Admitted():
                self.is_admitted = True
            case Rejected():
                self._error = action.error
            case Delta():
                self._deltas.append(action)
                self._bound(action)
        self._arrived.set()

    def _bound(self, delta: Delta) -> None:
        """A reader that has begun must keep up: an answer is not kept for it without end."""
        if self._n_unread is None:
            return
        self._n_unread += len(delta.tokens) + sum(len(p.top_tokens) for p in delta.logprobs)
        if self._n_unread > MAX_UNREAD_TOKENS and self._error is None:
            self._error = ClientError(
                f"the answer is read too slowly: {self._n_unread} tokens of it wait", status=408
            )
            self._engine.too_slow(self._request)


class Engine:
    """The pools, seen from the HTTP side."""

    def __init__(
        self,
        mailbox: Mailbox,
        links: Links,
        options: GatewayOptions,
        *,
        request_log: RequestLog,
        metrics: GatewayMetrics,
    ) -> None:
        self._mailbox = mailbox
        self._links = links
        self._core = GatewayCore(options, lambda: TransferId(uuid.uuid4().hex))
        self._request_log = request_log
        self._metrics = metrics
        self.history = History(metrics.totals)
        self.watchers = Watchers(self.history)
        self._streams: dict[RequestId, Stream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._wake_at = 0.0  # when the core asked to be asked again
        self._posted: list[GatewayEvent] = []
        self._pump_due = False
        self._closed = False
        self._resets: dict[int, _Reset] = {}
        self._reset_numbers = count()
        self._changed = asyncio.Event()  # a worker has come or gone
        self.on_crash: Callable[[BaseException], None] | None = None
        self.on_up: Callable[[InstanceId], None] = _unheard
        self.on_down: Callable[[InstanceId], None] = _unheard
        self.on_hung: Callable[[InstanceId], None] = _unheard
        self.troubles: Callable[[Role], Sequence[str]] = lambda _: ()  # why workers are not up

    # --- what the HTTP side calls ------------------------------------------------------------

    def submit(self, generate: Generate, arrived: Arrival) -> Stream:
        """Hand a prompt over. `await stream.admitted()` before answering 200.

        `arrived`, which several streams may share, is set when something has come for it.
        """
        if generate.request in self._streams:
            raise InvariantBroken(f"{generate.request} is in flight already")
        stream = self._streams[generate.request] = Stream(self, generate.request, arrived)
        if self._closed:
            stream.feed(self._closing(generate.request))
        self.watchers.submitted(generate)
        self.post(Submit(replace(generate, hashes=self._hashes(generate))))
        return stream

    def _hashes(self, generate: Generate) -> tuple[PageHash, ...]:
        """What the workers call the prompt's pages; none before the first worker is up."""
        hello = self._core.fleet.any_hello()
        if hello is None or hello.model is None or hello.limits is None:
            return ()
        return page_hashes(
            generate.prompt,
            hello.limits.page_tokens,
            fingerprint=pages_fingerprint(hello.model.fingerprint, hello.model.kv_dtype),
            salt=generate.salt,
        )

    @property
    def max_model_len(self) -> int | None:
        """Tokens of prompt and output that every worker can take; None: no worker is up."""
        return self._core.fleet.max_model_len

    @property
    def fleet(self) -> Fleet:
        """To be read only."""
        return self._core.fleet

    @property
    def most_seqs_of_one(self) -> int:
        """Sequences that one answer should have in flight at most."""
        return self._core.fleet.most_seqs_of_one

    @property
    def n_requests(self) -> int:
        """Prompts in flight."""
        return len(self._streams)

    async def up(self, wanted: Mapping[Role, int]) -> None:
        """Until that many workers of each role are up."""
        while any(self.workers()[role] < n for role, n in wanted.items()):
            self._changed.clear()
            await self._changed.wait()

    async def reset_prefix_cache(self) -> None:
        """Until every worker has forgotten the prefixes that it knew. Raises PeerError."""
        number = next(self._reset_numbers)
        reset = self._resets[number] = _Reset(set(self._core.fleet.instances()))
        try:
            async with asyncio.timeout(RESET_S):
                while reset.awaited:
                    for worker in reset.awaited:
                        message = ResetPrefixCache(number=number)
                        self._links.send(worker, message, time.monotonic())
                    self._schedule()  # sends may have used up the socket's edge
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reset.done.wait(), RESEND_S)
        except TimeoutError:
            names = ", ".join(sorted(worker[:8] for worker in reset.awaited))
            raise PeerError(f"workers that have not answered in {RESET_S:g} s: {names}") from None
        finally:
            del self._resets[number]

    def workers(self) -> dict[Role, int]:
        """Workers up, by role."""
        return self._core.ready()

    def counts(self) -> dict[str, int]:
        """Of control messages, as `common.metrics.control_counters` takes them."""
        return {**self._mailbox.counts, "stale": self._core.stale_messages}

    # --- the shell ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, in the running loop."""
        asyncio.get_running_loop().add_reader(self._mailbox.fd, self._pump)
        self._schedule()

    def close(self) -> None:
        """Say goodbye. Streams that still wait end with an error."""
        if self._closed:
            return
        self._closed = True
        asyncio.get_running_loop().remove_reader(self._mailbox.fd)
        if self._timer is not None:
            self._timer.cancel()
        for request, stream in list(self._streams.items()):
            stream.feed(self._closing(request))
        self._links.leave()

    @staticmethod
    def _closing(request: RequestId) -> Rejected:
        return Rejected(request, PeerError("the server is shutting down"))

    def post(self, event: GatewayEvent) -> None:
        """Give the core an event, soon, together with whatever else comes in this turn."""
        self._posted.append(event)
        self._schedule()

    def lost(self, instance: InstanceId, *, crashed: bool = False) -> None:
        """The process is known to be dead: sooner than its silence would tell. `crashed`: by
        itself."""
        if crashed:
            self._posted.append(Crashed(instance))
        self._links.lost(instance, time.monotonic())
        self._schedule()

    def wake(self) -> None:
        """Look at the links now: somebody was dialled."""
        self._schedule()

    def too_slow(self, request: RequestId) -> None:
        """Its reader does not keep up."""
        self._metrics.slow_readers_total.inc()
        self.forget(request)

    def forget(self, request: RequestId) -> None:
        """The stream's reader has left."""
        if self._streams.pop(request, None) is not None:
            self.post(Quit(request))

    def _schedule(self) -> None:
        if not self._pump_due and not self._closed:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """One turn: receive, decide, act. The socket's edge may be used up: read until empty."""
        self._pump_due = False
        if self._closed:
            return
        try:
            self._turn(time.monotonic())
        except Exception as error:
            if self.on_crash is None:
                raise
            self.on_crash(error)

    def _turn(self, now: float) -> None:
        posted, self._posted = self._posted, []
        heard = self._links.hear(now)
        if posted or heard or now >= self._wake_at:
            decision = self._core.step(now, [*posted, *heard])
            self._wake_at = math.inf if decision.wake_at is None else decision.wake_at
            for action in decision.actions:
                self._act(action, now)
            for event in heard:
                self._record(event)
                self.watchers.heard(event)
        if self._mailbox.has_unread:  # be it that sends have used up the socket's edge
            self._schedule()
        else:
            self._set_timer(min(self._wake_at, self._links.wake_at(now)))

    def _set_timer(self, wake_at: float) -> None:
        """One that would ring earlier stays: it costs less to ring in vain than to be replaced."""
        if self._timer is not None:
            if self._timer_at <= wake_at:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer_at = wake_at
        self._timer = loop.call_later(max(0.0, wake_at - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._pump()

    def _record(self, event: Event) -> None:
        """What workers tell of themselves is for the metrics as much as for the core."""
        match event:
            case Received(sender, Metrics() as told) if sender in self._core.fleet:
                role = self._core.fleet.hello(sender).peer.role
                self._metrics.metrics(role, sender, told)
            case Received(sender, Snapshot() as told) if sender in self._core.fleet:
                role = self._core.fleet.hello(sender).peer.role
                self._metrics.snapshot(role, sender, told)
            case Received(sender, PrefixCacheReset(number=number)):
                if number in self._resets:
                    self._resets[number].answered(sender)
            case Received(sender, Heartbeat(progress=Progress() as progress)):
                if is_hung(progress):
                    self.lost(sender)
                    self.on_hung(sender)
            case PeerUp(hello):
                self.on_up(hello.peer.instance)
                self._metrics.joined(hello)
                self._changed.set()
            case PeerDown(instance):
                self.on_down(instance)
                self._metrics.forget(instance)
                self._changed.set()
                for reset in self._resets.values():
                    reset.answered(instance)
            case _:
                pass

    def _act(self, action: GatewayAction, now: float) -> None:
        match action:
            case Send(peer, message):
                self._links.send(peer, message, now)
                if isinstance(message, Expect):
                    self._metrics.attempt()
            case Note():
                self._request_log.write(action.name, action.transfer, action.attempt, action.fields)
                self.watchers.note(action)
                if action.name == "routed":
                    fields = action.fields
                    self._metrics.routed(str(fields["decision"]), str(fields["reason"]))
            case _:
                if not isinstance(action, Delta):
                    self.history.answered(action)
                stream = self._streams.get(action.request)
                if stream is not None:
                    stream.feed(action)


def _unheard(_instance: InstanceId) -> None:
    pass

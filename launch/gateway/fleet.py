"""The workers as one gateway knows them: views for the router, what is there, barred pairs."""

from common.errors import InvariantBroken
from common.ids import InstanceId, Role
from common.messages import Hello, Peer, Snapshot
from launch.gateway.router import Demand, Route, WorkerView, route
from launch.gateway.transfers import Transfer

BAR_S = 5.0  # a pair whose transfer failed is not tried again before


class Fleet:
    """Who is up. Decides only by asking `router`."""

    def __init__(self) -> None:
        self._views: dict[InstanceId, WorkerView] = {}
        self._barred: dict[tuple[InstanceId, InstanceId], float] = {}

    def __contains__(self, instance: InstanceId) -> bool:
        return instance in self._views

    def instances(self) -> tuple[InstanceId, ...]:
        return tuple(self._views)

    def of(self, role: Role) -> list[WorkerView]:
        return [v for v in self._views.values() if v.hello.peer.role is role]

    def hello(self, instance: InstanceId) -> Hello:
        return self._views[instance].hello

    def any_hello(self) -> Hello | None:
        """Some worker's: they agree on the model and on the pages' size."""
        return next((view.hello for view in self._views.values()), None)

    @property
    def max_model_len(self) -> int | None:
        """The least of the workers'; None: there are none."""
        limits = (view.hello.limits for view in self._views.values())
        return min((one.max_model_len for one in limits if one is not None), default=None)

    def role(self, instance: InstanceId) -> Role | None:
        view = self._views.get(instance)
        return None if view is None else view.hello.peer.role

    def up(self, hello: Hello) -> None:
        view = self._views.setdefault(hello.peer.instance, WorkerView(hello))
        view.hello = hello

    def down(self, instance: InstanceId) -> bool:
        """False: it was not known."""
        self._barred = {pair: at for pair, at in self._barred.items() if instance not in pair}
        return self._views.pop(instance, None) is not None

    def snapshot(self, instance: InstanceId, snapshot: Snapshot) -> bool:
        """False: one was missed, ask for a whole one."""
        view = self._views.get(instance)
        return view is None or view.take(snapshot)

    def bar(self, prefill: InstanceId, decode: InstanceId, now: float) -> None:
        """Pages did not pass between these two: try other pairs, and this one later."""
        self._barred[prefill, decode] = now + BAR_S

    def route(self, demand: Demand, now: float, avoid: frozenset[InstanceId]) -> Route | None:
        """The cheapest pair; workers in `avoid` only if there are no others."""
        self._barred = {pair: until for pair, until in self._barred.items() if until > now}
        prefills, decodes = (
            [v for v in self.of(role) if v.instance not in avoid] or self.of(role)
            for role in (Role.PREFILL, Role.DECODE)
        )
        return route(demand, prefills, decodes, self._barred.keys())

    def assign(self, transfer: Transfer) -> None:
        """Count the transfer at the workers of its route."""
        transfer.prompt_queued = transfer.prefill is not None
        self._count(transfer.prefill, 1, len(transfer.generate.prompt))
        self._count(transfer.decode, 1, _all_tokens(transfer))

    def computed(self, transfer: Transfer) -> None:
        """Its prompt is no work any more for its prefill worker. Idempotent."""
        if transfer.prompt_queued:
            transfer.prompt_queued = False
            self._count(transfer.prefill, -1, len(transfer.generate.prompt))

    def unassign(self, transfer: Transfer) -> None:
        self.computed(transfer)
        self._count(transfer.decode, -1, _all_tokens(transfer))

    def _count(self, peer: Peer | None, sign: int, n_tokens: int) -> None:
        view = None if peer is None else self._views.get(peer.instance)
        if view is not None:
            view.own_requests += sign
            view.own_tokens += sign * n_tokens
            if view.own_requests < 0 or view.own_tokens < 0:
                raise InvariantBroken(f"{view.instance}: fewer than no requests")

    def loads(self) -> dict[InstanceId, int]:
        """Tokens of this gateway's requests, by worker that has any."""
        return {v.instance: v.own_tokens for v in self._views.values() if v.own_requests}


def _all_tokens(transfer: Transfer) -> int:
    generate = transfer.generate
    return len(generate.prompt) + generate.params.max_tokens * len(transfer.samples)

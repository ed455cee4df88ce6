"""The workers as one gateway knows them: views for the router, what is there, barred pairs."""

from collections.abc import Callable

from common.errors import InvariantBroken
from common.ids import InstanceId, Role
from common.messages import Hello, Limits, Snapshot
from common.values import Disaggregate
from launch.gateway.prefixes import Prefixes
from launch.gateway.router import Route, route
from launch.gateway.transfers import Transfer
from launch.gateway.views import Demand, WorkerView

Router = Callable[..., Route | None]
"""Called as `router.route` is."""

BAR_S = 5.0  # a pair whose transfer failed is not tried again before


class Fleet:
    """Who is up. Decides only by asking `router`."""

    def __init__(self, disaggregate: Disaggregate = "auto") -> None:
        self.router: Router = route  # a simulation may have another one
        self._disaggregate: Disaggregate = disaggregate
        self._views: dict[InstanceId, WorkerView] = {}
        self.prefixes = Prefixes()
        self._barred: dict[tuple[InstanceId, InstanceId], float] = {}

    def __contains__(self, instance: InstanceId) -> bool:
        return instance in self._views

    def instances(self) -> tuple[InstanceId, ...]:
        return tuple(self._views)

    def of(self, role: Role) -> list[WorkerView]:
        return [v for v in self._views.values() if v.hello.peer.role is role]

    def hello(self, instance: InstanceId) -> Hello:
        return self._views[instance].hello

    def limits(self, instance: InstanceId) -> Limits | None:
        view = self._views.get(instance)
        return None if view is None else view.hello.limits

    def any_hello(self) -> Hello | None:
        """Some worker's: they agree on the model and on the pages' size."""
        return next((view.hello for view in self._views.values()), None)

    @property
    def max_model_len(self) -> int | None:
        """The least of the workers'; None: there are none."""
        limits = (view.hello.limits for view in self._views.values())
        return min((one.max_model_len for one in limits if one is not None), default=None)

    @property
    def most_seqs_of_one(self) -> int:
        """Sequences that one answer may have in flight: what all can decode, and half of what may
        wait at each, so that others find room."""
        limits = [view.hello.limits for view in self.of(Role.DECODE)]
        known = [one for one in limits if one is not None]
        waiting = min((one.max_waiting for one in known), default=0)
        return sum(one.max_num_seqs for one in known) + waiting // 2

    def role(self, instance: InstanceId) -> Role | None:
        view = self._views.get(instance)
        return None if view is None else view.hello.peer.role

    def up(self, hello: Hello) -> None:
        view = self._views.setdefault(
            hello.peer.instance, WorkerView(hello, prefixes=self.prefixes)
        )
        view.hello = hello

    def down(self, instance: InstanceId) -> bool:
        """False: it was not known."""
        self._barred = {pair: at for pair, at in self._barred.items() if instance not in pair}
        self.prefixes.forget(instance)
        return self._views.pop(instance, None) is not None

    def view(self, instance: InstanceId) -> WorkerView | None:
        """None: it is not up."""
        return self._views.get(instance)

    def snapshot(self, instance: InstanceId, snapshot: Snapshot) -> bool:
        """False: one was missed, ask for a whole one."""
        view = self._views.get(instance)
        return view is None or view.take(snapshot)

    def has_missed(self, instance: InstanceId, last: int | None) -> bool:
        """A snapshot, if the last that it was sent has that number."""
        view = self._views.get(instance)
        if view is None or last is None:
            return False
        return last != (0 if view.snapshot is None else view.snapshot.sequence)

    def bar(self, prefill: InstanceId, decode: InstanceId, now: float) -> None:
        """Pages did not pass between these two: try other pairs, and this one later."""
        self._barred[prefill, decode] = now + BAR_S

    def route(self, demand: Demand, now: float, avoid: frozenset[InstanceId]) -> Route | None:
        """The cheapest route; workers in `avoid`, who have refused, only if there are no others."""
        self._barred = {pair: until for pair, until in self._barred.items() if until > now}
        prefills, decodes = (
            [v for v in self.of(role) if v.instance not in avoid] or self.of(role)
            for role in (Role.PREFILL, Role.DECODE)
        )
        return self.router(
            demand,
            prefills,
            decodes,
            self._barred.keys(),
            disaggregate=self._disaggregate,
            refused=avoid,
        )

    def assign(self, transfer: Transfer) -> None:
        """Count the transfer at the workers of its route."""
        transfer.prompt_queued = True
        self._count_prompt(transfer, 1)
        self._count_decode(transfer, 1)
        view = self._decode_of(transfer)
        if view is not None and transfer.prefill is not None:
            view.own_coming[transfer.transfer] = transfer.handed_by

    def computed(self, transfer: Transfer) -> None:
        """Its prompt is no work any more for whoever was to compute it. Idempotent."""
        if transfer.prompt_queued:
            transfer.prompt_queued = False
            self._count_prompt(transfer, -1)
            view = self._decode_of(transfer)
            if view is not None:
                view.own_coming.pop(transfer.transfer, None)

    def unassign(self, transfer: Transfer) -> None:
        self.computed(transfer)
        self._count_decode(transfer, -1)

    def _decode_of(self, transfer: Transfer) -> WorkerView | None:
        return None if transfer.decode is None else self._views.get(transfer.decode.instance)

    def _count_prompt(self, transfer: Transfer, sign: int) -> None:
        peer = transfer.prefill or transfer.decode
        view = None if peer is None else self._views.get(peer.instance)
        if view is not None:
            view.own_prompt_tokens += sign * len(transfer.generate.prompt)
            view.own_requests += sign * (transfer.prefill is not None)
            _check(view)

    def _count_decode(self, transfer: Transfer, sign: int) -> None:
        view, tpot_s = self._decode_of(transfer), transfer.generate.slo.tpot_s
        if view is None:
            return
        view.own_requests += sign
        view.own_tokens += sign * _all_tokens(transfer)
        if tpot_s is not None:
            view.own_tpots_s[tpot_s] += sign
            if not view.own_tpots_s[tpot_s]:
                del view.own_tpots_s[tpot_s]
        _check(view)

    def loads(self) -> dict[InstanceId, int]:
        """Tokens of this gateway's requests, by worker that has any: prompts to be computed, and
        all that are to be kept for decoding."""
        return {
            v.instance: v.own_prompt_tokens + v.own_tokens
            for v in self._views.values()
            if v.own_requests
        }


def _check(view: WorkerView) -> None:
    if min(view.own_requests, view.own_prompt_tokens, view.own_tokens) < 0:
        raise InvariantBroken(f"{view.instance}: fewer than no requests")


def _all_tokens(transfer: Transfer) -> int:
    generate = transfer.generate
    return len(generate.prompt) + generate.params.max_tokens * len(transfer.samples)

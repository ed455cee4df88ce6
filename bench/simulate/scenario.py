"""A cluster, its weather and its clients, all drawn from one number; and the whole of its life."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from bench.simulate.client import Client
from bench.simulate.cluster import Cluster
from bench.simulate.laws import require
from bench.simulate.model import POISON, SLOW_POISON, Wants
from bench.simulate.process import Watch
from bench.simulate.shape import Shape, Weather
from bench.simulate.workload import full_house, workload
from common.errors import InvariantBroken, Overloaded, PeerError
from common.ids import Role
from common.values import Disaggregate
from launch.gateway.transfers import Generate

EVERYTHING = Wants.ENDS | Wants.LOGPROBS | Wants.SCORES
LOST_AFTER_S = 3.0  # heartbeats come once a second or more often
DISAGGREGATE: tuple[Disaggregate, ...] = ("auto", "always", "always", "never")
REUSE_SHARE, SCARCE_SHARE = 0.4, 0.15  # of scenarios: see `_reuse` and `_scarce`
POISONS = (POISON, SLOW_POISON)
PATIENCE_S = 40.0  # of clients, once the weather is fair: pauses and delays may last 5 s more


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that a seed decides; what happens in it is drawn from the same seed."""

    seed: int
    shape: Shape
    weather: Weather
    n_requests: int
    most_outputs: int  # tokens
    full: bool  # prompts around whole pages, up to ones that fill a pool
    storm_s: float  # how long the weather lasts, and requests come
    quits: float  # share of clients that leave
    stops: float  # share of clients that stop a sample
    leave_s: float  # at most, from asking to either
    poison: int | None = None  # a token of one prompt, that fails passes
    deadly: bool = False  # and kills the worker


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the clients, and what they went through."""

    answered: int
    refused: int
    cut_off: int  # with their gateway
    quitted: int
    steps: int  # of all cores, each followed by a check of the laws
    virtual_s: float
    counts: Counter[str]  # messages and faults, by kind


def scenario(seed: int) -> Scenario:
    """Some faults, none or many, in a cluster that is small enough to be always short of
    something."""
    draw = Random(f"scenario {seed}")  # a stream of its own: the cluster is seeded with `seed`
    disaggregate = Random(f"disaggregate {seed}").choice(DISAGGREGATE)  # another, that came later
    drawn = Scenario(
        seed=seed,
        shape=replace(_shape(draw), disaggregate=disaggregate),
        weather=replace(_weather(draw), hung=Random(f"hung {seed}").choice((0.01, 0.0, 0.0))),
        n_requests=draw.choice((3, 8, 12, 16)),
        most_outputs=draw.choice((20, 20, 100)),
        full=draw.random() < 0.2,
        storm_s=draw.choice((0.2, 1.0, 3.0)),
        quits=draw.choice((0.0, 0.0, 0.5)),
        stops=draw.choice((0.0, 0.0, 0.3)),
        leave_s=draw.choice((0.2, 1.0)),
    )
    drawn = replace(drawn, poison=Random(f"poison {seed}").choice((*POISONS, *[None] * 8)))
    drawn = replace(drawn, deadly=Random(f"deadly {seed}").random() < 0.5)
    ahead = Random(f"ahead {seed}").random() < 0.5
    drawn = replace(drawn, shape=replace(drawn.shape, plan_ahead=ahead))
    kind = draw.random()
    if kind < REUSE_SHARE:
        return _reuse(drawn)
    return _scarce(draw, drawn) if kind < REUSE_SHARE + SCARCE_SHARE else drawn


def _shape(draw: Random) -> Shape:
    page_tokens = draw.choice((1, 4, 4, 16))
    chunk_tokens = draw.choice((4, 8, 24))
    return Shape(
        prefills=draw.choice((0, 1, 1, 2, 2)),
        decodes=draw.choice((1, 1, 2)),
        prefill_pages=draw.choice((8, 8, 12, 32)),
        decode_pages=draw.choice((8, 12, 24, 48)),
        host_pages=draw.choice((0, 8, 40)),
        page_tokens=page_tokens,
        chunk_tokens=chunk_tokens,
        budget_tokens=chunk_tokens * draw.choice((1, 3)),
        caching=draw.random() < 0.85,
        max_num_seqs=draw.choice((2, 8, 8)),
        max_waiting=draw.choice((2, 1000, 1000)),
        credit_tokens=draw.choice((4, 65_536, 65_536)),
        lost_after_s=LOST_AFTER_S,
        high_water=draw.choice((4, 10_000, 10_000)),
        far=draw.random() < 0.4,
        rounding=draw.random() < 0.5,
        same_address=draw.random() < 0.5,
    )


def _weather(draw: Random) -> Weather:
    def maybe(*values: float) -> float:
        """One of them, one time in three."""
        return draw.choice((*values, *[0.0] * 2 * len(values)))

    return Weather(
        drop=maybe(0.02, 0.1, 0.3),
        repeat=maybe(0.1, 0.5),
        delay=maybe(0.02, 0.2),
        reorder=maybe(0.02, 0.2),
        delay_s=draw.choice((0.05, 1.0, 5.0)),
        torn=maybe(0.05, 0.3),
        slow=maybe(0.3, 0.9),
        raised=maybe(0.01, 0.05),
        cut_every_s=maybe(0.1, 1.0),
        cut_s=draw.choice(((0.1, 1.0), (1.0, 6.0))),
        pause_every_s=maybe(0.3, 1.0),
        pause_s=draw.choice(((0.1, 1.0), (1.0, 5.0))),
        kill_every_s=maybe(0.2, 1.0),
        drain_every_s=maybe(0.5, 1.0),
        restart_every_s=maybe(0.5, 1.5),
    )


def _reuse(drawn: Scenario) -> Scenario:
    """Pages that begin another life while somebody still reads them: a small pool without a cache
    is read slowly, by workers that learn late that a transfer is over."""
    shape = replace(
        drawn.shape,
        prefills=1,
        decodes=2,
        prefill_pages=8,
        decode_pages=24,
        caching=False,  # what is given back is what is taken next
        max_num_seqs=8,
        max_waiting=1000,
        far=False,
    )
    weather = replace(
        drawn.weather,
        drop=0.0,
        slow=0.9,
        torn=0.0,
        pause_every_s=0.3,
        pause_s=(0.5, 1.5),
        pauses=(Role.DECODE,),
        kill_every_s=0.0,
    )
    return replace(drawn, shape=shape, weather=weather, n_requests=16, storm_s=3.0, quits=0.7)


def _scarce(draw: Random, drawn: Scenario) -> Scenario:
    """One pool for many long answers: sequences give way, to host memory and back."""
    shape = replace(
        drawn.shape,
        prefills=draw.choice((0, 1)),
        decodes=1,
        prefill_pages=24,
        decode_pages=24,
        host_pages=draw.choice((12, 40)),
        page_tokens=4,
        max_num_seqs=8,
        max_waiting=1000,
        credit_tokens=draw.choice((64, 65_536)),
    )
    return replace(drawn, shape=shape, n_requests=16, most_outputs=100, full=False, storm_s=1.0)


def live(what: Scenario, watches: Sequence[Watch] = ()) -> Outcome:
    """From the first request to an idle cluster. Raises what a core raises, or InvariantBroken.

    The same scenario lives the same life.
    """
    shape, n = what.shape, what.n_requests
    cluster = Cluster(shape, what.seed, what.weather, watches=watches)
    if what.full:
        requests = full_house(what.seed, shape, n)
    else:
        requests = workload(what.seed, shape, n, wants=EVERYTHING, most_outputs=what.most_outputs)
    cluster.world.deadly = what.deadly
    if what.poison is not None:
        requests[0] = replace(requests[0], prompt=(*requests[0].prompt[:-1], what.poison))
    clients = _send(cluster, requests, what)
    cluster.clock.at(what.storm_s, cluster.network.heal)
    cluster.run(what.storm_s)
    cluster.run(PATIENCE_S, until=lambda: all(client.over for client in clients))
    for client in clients:
        _check(client, what.weather)
    cluster.settle()
    return Outcome(
        answered=sum(c.whole for c in clients),
        refused=sum(c.error is not None for c in clients),
        cut_off=sum(c.cut_off for c in clients),
        quitted=sum(c.quitted for c in clients),
        steps=cluster.world.n_steps,
        virtual_s=cluster.now,
        counts=cluster.network.counts,
    )


def _send(cluster: Cluster, requests: Sequence[Generate], what: Scenario) -> list[Client]:
    """Clients as they will be: each asks at some time, and may leave or stop a sample later."""
    clients: list[Client] = []
    draw = cluster.world.random

    def ask(request: Generate) -> None:
        gateway = cluster.gateway
        gateway.submit(request)
        clients.append(gateway.clients[request.request])
        later_s = draw.uniform(0.0, what.leave_s)
        if draw.random() < what.quits:
            cluster.clock.at(later_s, lambda: gateway.quit(request))
        elif draw.random() < what.stops:
            sample = draw.randrange(request.n)
            cluster.clock.at(later_s, lambda: gateway.stop_sample(request, sample))

    for request in requests:
        at = draw.uniform(0.0, what.storm_s)
        cluster.clock.at(at, lambda r=request: ask(r))
    return clients


def _check(client: Client, weather: Weather) -> None:
    """An answer, whole, or an error that says when to come again, before the answer began."""
    name, error = client.request.request, client.error
    require(client.over, f"{name} waits for ever")
    if error is None:
        return
    is_poison = client.request.prompt[-1] in POISONS
    if isinstance(error, PeerError) and (weather.raised or is_poison):
        return  # passes raised, again and again
    if not isinstance(error, Overloaded):
        raise InvariantBroken(f"{name} is told {error!r}") from error
    require(client.admitted_at is None, f"{name} was admitted, and is told {error!r}")

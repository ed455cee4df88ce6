"""What a gateway knows of its workers and of a request, as far as routing is concerned. Records,
no decisions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.ids import InstanceId, PageHash, TransferId
from common.messages import Hello, Snapshot
from launch.gateway.prefixes import Prefixes


@dataclass(slots=True, eq=False)
class WorkerView:
    """What this gateway knows of one worker: its last snapshot, and its own requests there."""

    hello: Hello
    snapshot: Snapshot | None = None
    prefixes: Prefixes = field(default_factory=Prefixes)  # of all workers
    own_requests: int = 0  # of this gateway, not over yet
    own_prompt_tokens: int = 0  # of those, to be computed there
    own_tokens: int = 0  # decode: prompt + output tokens of those
    own_tpots_s: Counter[float] = field(default_factory=Counter[float])  # decode: stated by those
    own_coming: dict[TransferId, float] = field(  # decode: when those should be handed over that
        default_factory=dict[TransferId, float]  # a prefill worker is to compute
    )
    instance: InstanceId = field(init=False)

    def __post_init__(self) -> None:
        self.instance = self.hello.peer.instance

    @property
    def page_tokens(self) -> int:
        return self.hello.limits.page_tokens if self.hello.limits is not None else 1

    @property
    def busy(self) -> int:
        """Sequences there, as its snapshot tells or as this gateway knows better."""
        snapshot = self.snapshot
        busy = snapshot.running + snapshot.waiting if snapshot is not None else 0
        return max(busy, self.own_requests)

    @property
    def n_decoding(self) -> int:
        """Of those, sequences that decode, or whose prompts are to be computed there."""
        return max(0, self.busy - len(self.own_coming))

    @property
    def queued_tokens(self) -> int:
        """Of prompts, to be computed there, from the same two sources."""
        queued = self.snapshot.queued_tokens if self.snapshot is not None else 0
        return max(queued, self.own_prompt_tokens)

    @property
    def tightest_tpot_s(self) -> float | None:
        """Of this gateway's requests that decode there; None: none states one."""
        return min(self.own_tpots_s, default=None)

    def take(self, snapshot: Snapshot) -> bool:
        """Take a snapshot in. False if one was missed before it: ask for a whole one."""
        last = self.snapshot
        if not snapshot.whole and (last is None or snapshot.sequence != last.sequence + 1):
            return last is not None and snapshot.sequence <= last.sequence
        if snapshot.whole:
            self.prefixes.forget(self.instance)
        self.prefixes.store(self.instance, snapshot.stored)
        self.prefixes.remove(self.instance, snapshot.removed)
        self.snapshot = snapshot
        return True

    def cached_pages(self, hashes: Sequence[PageHash]) -> int:
        """How many leading pages it holds, as far as its snapshots tell."""
        return self.prefixes.leading(self.instance, hashes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request needs, as far as routing is concerned."""

    n_tokens: int  # to have KV before the first new token
    max_tokens: int
    hashes: tuple[PageHash, ...]  # of the full pages of those tokens
    ttft_s: float | None = None  # from now to when the first is owed; None: no SLO says
    tpot_s: float | None = None  # a token after it, in the mean; None: the same
    now: float = 0.0  # when it is asked for, by the core's clock

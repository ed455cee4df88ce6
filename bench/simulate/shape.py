"""What a virtual cluster is made of, and how bad its weather is."""

from dataclasses import dataclass

from bench.simulate.costs import Costs
from common.engine.reports import HEARTBEAT_BUSY_S
from common.ids import Role
from common.values import AdmissionPolicy, Disaggregate


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker of a role is made of."""

    n_pages: int
    chunk_tokens: int
    budget_tokens: int
    max_num_seqs: int
    costs: Costs | None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Workers and their limits. What decode workers have of their own is as prefill workers have
    it, unless it is said."""

    prefills: int = 1
    decodes: int = 1
    prefill_pages: int = 64
    decode_pages: int = 64
    host_pages: int = 0  # of host memory, beside each decode worker's
    page_tokens: int = 4
    chunk_tokens: int = 8
    budget_tokens: int = 32
    caching: bool = True
    max_num_seqs: int = 8
    max_waiting: int = 1000
    credit_tokens: int = 65_536
    lost_after_s: float = 10.0  # of silence
    heartbeat_s: float = HEARTBEAT_BUSY_S  # while something is shared
    high_water: int = 10_000  # messages that may be on their way from one process to another
    costs: Costs | None = None  # of timed runs; in the hunt for faults all times are random
    decode_chunk_tokens: int | None = None
    decode_budget_tokens: int | None = None
    decode_max_num_seqs: int | None = None
    decode_costs: Costs | None = None
    admission: AdmissionPolicy = "predicted"  # of timed runs
    message_s: float = 0.0002  # in timed runs: from one process to another
    request_s: float = 0.0  # the same: from a client to the gateway's core, text made tokens
    token_s: float = 0.0  # the same: from the gateway's core to a client
    disaggregate: Disaggregate = "always"
    far: bool = False  # one host each: pages of the dead, and across a cut, cannot be pulled
    rounding: bool = False  # each attempt draws tokens of its own, as it may in bf16
    same_address: bool = False  # a worker's next life listens where the last one did
    plan_ahead: bool = False  # workers plan a pass while one is computed, as those on GPUs do

    def part(self, role: Role) -> Part:
        """Of a prefill or a decode worker."""
        if role is Role.PREFILL:
            return Part(
                n_pages=self.prefill_pages,
                chunk_tokens=self.chunk_tokens,
                budget_tokens=self.budget_tokens,
                max_num_seqs=self.max_num_seqs,
                costs=self.costs,
            )
        return Part(
            n_pages=self.decode_pages,
            chunk_tokens=self.decode_chunk_tokens or self.chunk_tokens,
            budget_tokens=self.decode_budget_tokens or self.budget_tokens,
            max_num_seqs=self.decode_max_num_seqs or self.max_num_seqs,
            costs=self.decode_costs or self.costs,
        )

    @property
    def max_model_len(self) -> int:
        """A prompt may fill the smaller pool."""
        pages = [self.decode_pages, *([self.prefill_pages] if self.prefills else [])]
        return min(pages) * self.page_tokens


@dataclass(frozen=True, kw_only=True)
class Weather:
    """All zero: nothing goes wrong. Shares are of 1; `..._every_s` are means of random times."""

    drop: float = 0.0  # messages lost
    repeat: float = 0.0  # messages that come again, up to `delay_s` later
    delay: float = 0.0  # messages that take up to `delay_s`, and hold up those behind them
    reorder: float = 0.0  # messages that take as long, and are passed by those behind them
    delay_s: float = 1.0
    torn: float = 0.0  # pulls that fail
    slow: float = 0.0  # pulls that stand still first, for up to `slow_s`
    slow_s: float = 1.0
    raised: float = 0.0  # passes that raise
    hung: float = 0.0  # passes that never end
    cut_every_s: float = 0.0  # all messages between two processes are lost for a while
    cut_s: tuple[float, float] = (0.1, 2.0)
    pause_every_s: float = 0.0  # a process stands still for a while
    pause_s: tuple[float, float] = (0.1, 2.0)
    pauses: tuple[Role, ...] = tuple(Role)  # whose
    kill_every_s: float = 0.0  # a worker dies; another life starts soon after
    drain_every_s: float = 0.0  # another worker starts, and an old one is told to leave
    restart_every_s: float = 0.0  # the gateway dies; its next life listens at the same address

    @property
    def is_calm(self) -> bool:
        """What is said is heard, and soon."""
        return not any((self.drop, self.delay, self.reorder, self.cut_every_s, self.pause_every_s))

    @property
    def lingers_s(self) -> float:
        """How long after its end messages may still be late."""
        late_s = self.delay_s if self.delay or self.reorder else 0.0
        return late_s + (self.pause_s[1] if self.pause_every_s else 0.0)


FAIR = Weather()

"""Early rejection: is a request taken that states how soon each of its tokens must follow?

It is judged before any work is done for it, by what its tokens would take on the decode worker
that it is meant for: beside what that decodes now, or beside what it will decode when the prompt is
computed (Mooncake, Qin et al., 2025, arXiv 2407.00079, section 7: who looks at the present lets in
too many while prompts are computed, then nobody, and the load of both pools swings). Whether the
first token would be late is for the worker to say that computes it. Records are read, answers
returned, nothing is changed but what is learnt.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from zlib import crc32

from common.engine.lengths import Lengths
from common.engine.pace import COMPARABLE, SHARE, Pace
from common.errors import TpotHopeless, TpotMissed
from common.ids import InstanceId
from common.params import FinishReason
from common.values import AdmissionPolicy
from launch.gateway.transfers import RETRY_MIN_S, Phase, Sample, Transfer

RETRY_MAX_S = 60.0
LEARN_EVERY_S = 0.25  # of each decode worker: what it tells is a median of many passes
KNOWN_FOR_S = 60.0  # of a decode worker that has decoded nothing since
KEPT = 64  # of what was learnt of a size: long enough ago for batches to have been others
_SOON_S = 1e-6


@dataclass(frozen=True, slots=True)
class Answer:
    """One that a decode worker has, or is to have."""

    starts_s: float  # from now until its prompt is computed; 0: it is
    n_tokens: int  # of prompt and outputs, now
    n_left: int  # that it is expected to say still


@dataclass(frozen=True, slots=True)
class Verdict:
    """It is refused: what a token is predicted to take, and when to come again."""

    tpot_s: float
    retry_after_s: float | None  # None: never, an idle worker would take `tpot_s`, too

    def error(self, owed_s: float) -> TpotMissed:
        if self.retry_after_s is None:
            return TpotHopeless(owed_s, self.tpot_s)
        return TpotMissed(owed_s, self.tpot_s, retry_after_s=self.retry_after_s)


@dataclass(frozen=True, slots=True)
class Device:
    """What is known of a decode worker: a pass takes base + row * rows + token * context."""

    base_s: float
    row_s: float
    token_s: float
    most_rows: int  # of a pass that was measured
    max_num_seqs: int
    least_s: float = inf  # that any pass took

    def idle_s(self, n_answers: int, n_tokens: int) -> float:
        """A token, if there were nobody else: no more than any pass took, since few passes tell
        little of what each token of context costs."""
        return min(self.least_s, self.tpot_s(n_answers, n_tokens))

    def tpot_s(self, n_answers: int, n_tokens: float) -> float:
        """A token a pass, or every so many passes where not all fit in one.

        One more than was ever measured is taken for as many: where passes of few sizes were
        measured, what they took may be put down to their size, and nobody would find out.
        """
        n_rows = min(n_answers, self.max_num_seqs)
        turns = max(1.0, n_answers / self.max_num_seqs)
        if n_rows == self.most_rows + 1:
            n_tokens -= n_tokens / n_rows
            n_rows -= 1
        return (self.base_s + self.row_s * n_rows + self.token_s * n_tokens) * turns

    def is_known(self, n_answers: int) -> bool:
        """Passes were measured that tell what one of so many takes."""
        return min(n_answers, self.max_num_seqs) <= self.most_rows * COMPARABLE


def device_of(pace: Pace, max_num_seqs: int) -> Device | None:
    """None: too few passes were measured."""
    fit = pace.coefficients()
    return None if fit is None else Device(*fit, pace.most_rows, max_num_seqs, pace.least_s)


def judge(
    own: Sequence[Answer], owed_s: float, others: Sequence[Answer], device: Device, at_s: float
) -> Verdict | None:
    """None: `own` is taken. `owed_s`: for each of its tokens; a share of it is for what is not
    computing, and for what is predicted wrongly. `at_s`: from now until the time whose load counts.

    Who would be too slow on an idle worker is told so, whoever is there; otherwise whoever would
    be alone is taken.
    """
    there = decoded(others, device, at_s)
    n_own = sum(one.n_tokens for one in own)
    idle_s = device.idle_s(len(own), n_own)
    if device.is_known(len(own)) and idle_s > owed_s:
        return Verdict(idle_s, None)
    context = list(accumulate((n for _, n in reversed(there)), initial=n_own))[::-1]

    def tpot_s(n_ended: int) -> float:
        return device.tpot_s(len(there) - n_ended + len(own), context[n_ended])

    def fits(n_ended: int) -> bool:
        return tpot_s(n_ended) <= SHARE * owed_s

    if not there or not device.is_known(len(there) + len(own)) or fits(0):
        return None
    last = bisect_left(range(1, len(there)), 1, key=fits)
    retry_after_s = there[last][0] * device.tpot_s(len(there), context[0] - n_own)
    return Verdict(tpot_s(0), min(max(RETRY_MIN_S, retry_after_s), RETRY_MAX_S))


def decoded(others: Sequence[Answer], device: Device, at_s: float) -> list[tuple[float, float]]:
    """What the worker will decode then: what each will still say, and its tokens; who ends first
    is first.

    As all advance alike, time is counted in tokens of each: it passes as fast as the batch lets
    it, which changes where one begins or ends.
    """
    said = now_s = n_base = 0.0
    ends: list[tuple[float, float]] = []  # when, and tokens less those said since all began
    for one in sorted(others, key=_start):
        if one.starts_s > at_s:
            break
        said, n_base = _advance(ends, (said, n_base), device, one.starts_s - now_s)
        now_s = max(now_s, one.starts_s)
        heappush(ends, (said + one.n_left, one.n_tokens - said))
        n_base += one.n_tokens - said
    said, _ = _advance(ends, (said, n_base), device, at_s - now_s)
    return [(end - said, n + said) for end, n in sorted(ends)]


def _start(answer: Answer) -> float:
    return answer.starts_s


def _advance(
    ends: list[tuple[float, float]], at: tuple[float, float], device: Device, seconds: float
) -> tuple[float, float]:
    """Pop those that end meanwhile. `at`: tokens said, and those of `ends` less these; returned is
    the same after it."""
    said, n_base = at
    while ends and seconds > 0:
        step_s = device.tpot_s(len(ends), n_base + len(ends) * said)
        if (ends[0][0] - said) * step_s > seconds:
            return said + seconds / step_s, n_base
        seconds -= (ends[0][0] - said) * step_s
        said, n = heappop(ends)
        n_base -= n
    return said, n_base


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may be refused."""

    transfer: Transfer
    decode: InstanceId
    max_num_seqs: int  # of its passes
    tpot_s: float  # that the request is owed
    ttft_s: float  # predicted


class Admission:
    """The rule, and what it has learnt: passes of decode workers, and how long answers are."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy: AdmissionPolicy = policy
        self._foresight = Lengths()
        self._paces: dict[InstanceId, Pace] = {}
        self._learn_at: dict[InstanceId, float] = {}

    def learn(
        self, decode: InstanceId, there: Collection[Transfer], step_s: float, now: float
    ) -> None:
        """What its passes take lately, with what of `there` it decodes now."""
        if now < self._learn_at.get(decode, now):
            return
        lengths = [
            len(transfer.generate.prompt) + len(sample.outputs)
            for transfer in there
            if transfer.phase is Phase.HANDED
            for sample in transfer.live()
        ]
        if step_s and lengths:
            self._learn_at[decode] = now + LEARN_EVERY_S
            self._paces.setdefault(decode, Pace(KEPT)).learn(len(lengths), sum(lengths), step_s)

    def forget(self, decode: InstanceId) -> None:
        self._paces.pop(decode, None)
        self._learn_at.pop(decode, None)

    def ended(self, transfer: Transfer) -> None:
        """Its answers are over, by themselves or not."""
        for sample in transfer.samples:
            if sample.outputs:
                by_itself = sample.stopped or sample.finish is FinishReason.STOP
                self._foresight.ended(len(sample.outputs), cut=not by_itself)

    def verdict(self, new: Candidate, there: Collection[Transfer], now: float) -> Verdict | None:
        """None: it is taken, as everybody is before passes were measured. `there`: whatever the
        decode worker has, or is to have."""
        if now > self._learn_at.get(new.decode, now) + KNOWN_FOR_S:
            self.forget(new.decode)  # else nobody would ever learn that it has become faster
        pace = self._paces.get(new.decode)
        device = None if pace is None else device_of(pace, new.max_num_seqs)
        if device is None:
            return None
        outputs = [len(s.outputs) for t in there if t.phase is Phase.HANDED for s in t.live()]
        self._foresight.go_on(outputs)
        others = [one for t in there for one in self._answers(t, _starts_s(t, now))]
        at_s = new.ttft_s
        if self.policy == "load":
            at_s, others = 0.0, [one for one in others if not one.starts_s]
        own = self._answers(new.transfer, new.ttft_s)
        return judge(own, new.tpot_s, others, device, at_s)

    def _answers(self, transfer: Transfer, starts_s: float) -> list[Answer]:
        generate = transfer.generate
        n_prompt, most = len(generate.prompt), generate.params.max_tokens
        made: list[Answer] = []
        for sample in transfer.live():
            n_said = len(sample.outputs)
            n_all = self._foresight.predict(n_said, max(most, n_said + 1), _rank(transfer, sample))
            made.append(Answer(starts_s, n_prompt + n_said, n_all - n_said))
        return made


def _starts_s(transfer: Transfer, now: float) -> float:
    """One that is overdue comes at any moment, and is not there."""
    if transfer.phase is Phase.HANDED:
        return 0.0
    return max(_SOON_S, transfer.handed_by - now)


def _rank(transfer: Transfer, sample: Sample) -> float:
    """In [0, 1): as it differs from one answer to the next, the forecast is of a fair sample."""
    return (crc32(transfer.transfer.encode(), sample.sample) % 2**16) / 2**16

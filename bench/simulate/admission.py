"""Admission by forecast peak of pages, beside "let in whoever fits now".

    python -m bench.simulate.admission

One decode core computes chats with long answers, of which a fixed number is always open, in a pool
that is too small for all that a pass could take. Time is virtual: a pass costs what its tokens do,
recomputed ones included. Same requests, same core; only what it expects of lengths differs. The
last line is JSON.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from random import Random

import numpy as np

from common.engine.events import Action, Event, Launch, Note, PeerUp, Received, Send, StepDone
from common.engine.lengths import Lengths
from common.engine.plan import Drawn, PassResult
from common.ids import HostId, InstanceId, Role, TransferId
from common.kv.pages import PagePool
from common.messages import PROTOCOL, End, Expect, Hello, Limits, Peer, Resume, Tokens
from common.params import SamplingParams
from decode.compute import DecodeOptions
from decode.core import DecodeCore
from decode.forecast import Foresight

GATEWAY = InstanceId("gateway")
SAYING, ENDING = 1, 0  # token ids


class Blind:
    """Expects every sequence to end with its next token: whoever fits now is let in."""

    deviations = 0.0

    def ended(self, n_said: int, *, cut: bool) -> None:
        pass

    def go_on(self, n_said: Sequence[int]) -> None:
        pass

    def predict(self, n_said: int, most: int, rank: float) -> int:  # noqa: ARG002  the protocol's
        return n_said + 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The workload, and the worker that it meets."""

    n_requests: int = 400
    n_open: int = 96  # at any time
    mean_prompt: int = 128
    mean_output: int = 600
    max_tokens: int = 2048
    sigma: float = 0.6  # of the lengths' logarithm
    n_pages: int = 1024
    page_tokens: int = 16
    max_num_seqs: int = 64
    pass_ms: float = 4.0  # of a pass without tokens
    token_ms: float = 0.5  # each token of a pass
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it. Seconds are virtual."""

    preemptions: int
    output_tokens: int
    recomputed_tokens: int
    passes: int
    seconds: float
    output_tokens_per_s: float
    mean_held: float  # of the pool's pages, as passes were launched
    p50_s: float  # from the first time that the worker was asked to the last token
    p99_s: float


@dataclass(slots=True)
class _Chat:
    request: Expect
    n_output: int
    asked_at: float = 0.0
    ended_at: float = 0.0


def _chats(setting: Setting) -> list[_Chat]:
    """Different texts, so that nothing is shared; lengths are log-normal with these means."""
    random = Random(setting.seed)

    def length(mean: int) -> int:
        return max(
            1, round(random.lognormvariate(np.log(mean) - setting.sigma**2 / 2, setting.sigma))
        )

    made: list[_Chat] = []
    for number in range(setting.n_requests):
        prompt = (number + 2, *[SAYING] * length(setting.mean_prompt))
        request = Expect(
            transfer=TransferId(str(number)),
            attempt=1,
            prompt=prompt,
            samples=(Resume(0),),
            params=SamplingParams(
                max_tokens=setting.max_tokens, seed=number, end_token_ids=(ENDING,)
            ),
            prefill=None,
        )
        n_output = min(length(setting.mean_output), setting.max_tokens)
        made.append(_Chat(request, n_output))
    return made


class _Run:
    """The gateway, the device and the clock of one decode core."""

    def __init__(self, setting: Setting, foresight: Foresight) -> None:
        self._setting = setting
        limits = Limits(
            n_pages=setting.n_pages,
            page_tokens=setting.page_tokens,
            max_model_len=setting.n_pages * setting.page_tokens,
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=512,
            max_waiting=setting.n_open,
        )
        self._pool = PagePool(setting.n_pages, np.zeros(setting.n_pages, np.uint64))
        options = DecodeOptions(fingerprint="simulated", chunk_tokens=256)
        self._core = DecodeCore(limits, self._pool, options, foresight)
        self._chats = _chats(setting)
        self._by_transfer = {chat.request.transfer: chat for chat in self._chats}
        self._coming = iter(self._chats)
        self._now = 0.0
        self._preemptions = self._passes = self._rows = self._held = 0

    def whole(self) -> Outcome:
        """Until every chat has ended."""
        peer = Peer(instance=GATEWAY, role=Role.GATEWAY, host=HostId("h"), endpoints=())
        hello = Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
        events: list[Event] = [PeerUp(hello), *self._ask(self._setting.n_open)]
        while events:
            events = self._act(self._core.step(self._now, events).actions)
        self._core.check()
        return self._outcome()

    def _ask(self, n: int) -> list[Event]:
        asked = list(islice(self._coming, n))
        for chat in asked:
            chat.asked_at = self._now
        return [Received(GATEWAY, chat.request) for chat in asked]

    def _act(self, actions: Sequence[Action]) -> list[Event]:
        """What follows: a pass is final when its time is over, an answer is followed by the next
        question."""
        events: list[Event] = []
        for action in actions:
            match action:
                case Launch():
                    events.append(self._pass(action))
                case Send(message=Tokens(runs=runs)):
                    for run in runs:
                        if run.finish is not None:
                            self._by_transfer[run.transfer].ended_at = self._now
                            events.append(Received(GATEWAY, End(transfer=run.transfer, attempt=1)))
                            events += self._ask(1)
                case Note(name="preempted"):
                    self._preemptions += 1
                case _:
                    pass
        return events

    def _pass(self, launch: Launch) -> StepDone:
        plan = launch.plan
        self._now += (self._setting.pass_ms + self._setting.token_ms * plan.n_rows) / 1e3
        self._passes += 1
        self._rows += plan.n_rows
        self._held += self._pool.n_held
        drawn = tuple(
            Drawn(token=SAYING if d.index + 1 < self._by_transfer[d.transfer].n_output else ENDING)
            for d in plan.draws
        )
        return StepDone(launch.step, PassResult(drawn=drawn))

    def _outcome(self) -> Outcome:
        output_tokens = sum(chat.n_output for chat in self._chats)
        least = sum(len(c.request.prompt) + c.n_output - 1 for c in self._chats)
        waits = sorted(chat.ended_at - chat.asked_at for chat in self._chats)
        return Outcome(
            preemptions=self._preemptions,
            output_tokens=output_tokens,
            recomputed_tokens=self._rows - least,
            passes=self._passes,
            seconds=self._now,
            output_tokens_per_s=output_tokens / self._now,
            mean_held=self._held / self._passes / self._setting.n_pages,
            p50_s=waits[len(waits) // 2],
            p99_s=waits[len(waits) * 99 // 100],
        )


def simulate(setting: Setting, foresight: Foresight) -> Outcome:
    """Deterministic: the same arguments give the same outcome."""
    return _Run(setting, foresight).whole()


def main(argv: Sequence[str]) -> int:
    """Returns 1 unless the forecast preempts 5 times less often, at no lower throughput."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m bench.simulate.admission", description=main.__doc__
    )
    for name, value in asdict(Setting()).items():
        flag = "--" + name.removeprefix("n_").replace("_", "-")
        parser.add_argument(flag, dest=name, type=type(value), default=value)
    setting = Setting(**vars(parser.parse_args(argv)))
    fits_now, forecast = simulate(setting, Blind()), simulate(setting, Lengths())
    print(f"{'':22} {'fits now':>12} {'forecast':>12}")
    for name, value in asdict(fits_now).items():
        print(f"{name:22} {value:12,.6g} {getattr(forecast, name):12,.6g}")
    passed = (
        5 * forecast.preemptions <= fits_now.preemptions
        and forecast.output_tokens_per_s >= fits_now.output_tokens_per_s
    )
    result = {"fits_now": asdict(fits_now), "forecast": asdict(forecast), "passed": passed}
    print(json.dumps({"benchmark": "admission", "setting": asdict(setting), **result}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

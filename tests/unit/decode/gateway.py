"""A gateway as decode sees it: it opens attempts, checks every token, acknowledges now and then,
lists what it has, and ends what is complete or no longer wanted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.ids import InstanceId, TransferId
from common.messages import (
    Accepted,
    Ack,
    AnyMessage,
    End,
    Expect,
    Failed,
    Gone,
    Heartbeat,
    Listed,
    Peer,
    Phase,
    Refused,
    Resume,
    TokenRun,
    Tokens,
    TokensAck,
)
from common.params import SamplingParams
from tests.unit.decode.builders import G, peer
from tests.unit.decode.memory import END, answer

if TYPE_CHECKING:
    from tests.unit.decode.prefill import Prefiller
    from tests.unit.decode.real_prefill import RealPrefiller
    from tests.unit.decode.world import World


@dataclass
class Asked:
    """A client's request, through all its attempts."""

    expect: Expect
    expected: list[list[int]]
    had: list[list[int]]
    finished: list[bool]
    accepted: bool = False
    refused: bool = False  # it is to be told again later
    handed: bool = False  # decode has spoken of this attempt's tokens

    @property
    def whole(self) -> bool:
        return all(self.finished)


class Gateway:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.open: dict[TransferId, Asked] = {}
        self.n_answered = 0
        self.n_attempts = 0
        self.credit_tokens: int | None = None
        self._n_asked = 0
        self._beating = False

    # --- requests ----------------------------------------------------------------------------

    def ask(self, prompt: tuple[int, ...], n: int, max_tokens: int, *, local: bool) -> None:
        if not self._beating:
            self._beating = True
            self._beat()
        self._n_asked += 1
        transfer = TransferId(f"t{self._n_asked}")
        params = SamplingParams(max_tokens=max_tokens, seed=1, end_token_ids=(END,))
        expect = Expect(
            transfer=transfer,
            attempt=1,
            prompt=prompt,
            samples=tuple(map(Resume, range(n))),
            params=params,
            prefill=None if local else self._prefill(),
        )
        expected = [answer(prompt, sample, max_tokens) for sample in range(n)]
        self.open[transfer] = Asked(expect, expected, [[] for _ in range(n)], [False] * n)
        self._start(self.open[transfer])

    def _prefill(self) -> Peer:
        return peer(self._world.random.choice(list(self._world.prefills)))

    def _start(self, asked: Asked) -> None:
        self.n_attempts += 1
        asked.accepted = asked.handed = False
        self._tell(asked)

    def _tell(self, asked: Asked) -> None:
        """Repeated until it is answered, like the Prefill beside it."""
        self._send(asked.expect)
        prefill = asked.expect.prefill
        if prefill is not None and prefill.instance in self._world.prefills:
            worker = self._world.prefills[prefill.instance]
            self._world.later(self._world.random.expovariate(100), lambda: self._go(worker, asked))

    def _go(self, worker: "Prefiller | RealPrefiller", asked: Asked) -> None:
        if self.open.get(asked.expect.transfer) is asked:
            worker.prefill(asked.expect)

    def cancel(self) -> None:
        if self.open:
            self._end(self.open[self._world.random.choice(list(self.open))])

    def _end(self, asked: Asked) -> None:
        expect = asked.expect
        del self.open[expect.transfer]
        self._send(End(transfer=expect.transfer, attempt=expect.attempt))
        for worker in self._world.prefills.values():
            worker.ended((expect.transfer, expect.attempt))

    def _again(self, asked: Asked) -> None:
        """The next attempt, from what the client has. Most often decode computes it itself."""
        random = self._world.random
        old = asked.expect
        had_some = any(asked.had)
        going = [s for s, finished in enumerate(asked.finished) if not finished]
        samples = tuple(Resume(s, tuple(asked.had[s])) for s in going)
        local = (had_some and len(samples) > 1) or random.random() < 0.5
        for worker in self._world.prefills.values():
            worker.ended((old.transfer, old.attempt))
        asked.expect = Expect(
            transfer=old.transfer,
            attempt=old.attempt + 1,
            prompt=old.prompt,
            samples=samples,
            params=old.params,
            prefill=None if local else self._prefill(),
        )
        self._start(asked)

    def prefill_lost(self, instance: InstanceId) -> None:
        for asked in list(self.open.values()):
            prefill = asked.expect.prefill
            if prefill is not None and prefill.instance == instance and not asked.handed:
                self._again(asked)

    # --- messages ----------------------------------------------------------------------------

    def _send(self, message: AnyMessage) -> None:
        self._world.post(G, "core", message)

    def hear(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, Tokens):
            for run in message.runs:
                self._had(run, by_decode=sender == "core")
            if sender == "core":
                self._acknowledge(message.runs)
        elif isinstance(message, Accepted | Failed | Refused | Gone):
            asked = self._current(message.transfer, message.attempt)
            if asked is not None and sender == "core":
                self._answered(asked, message)
            elif asked is not None and not asked.handed:
                self._answered_by_prefill(asked, message)

    def _answered(self, asked: Asked, message: Accepted | Failed | Refused | Gone) -> None:
        match message:
            case Accepted():
                asked.accepted = True
            case Failed():
                self._again(asked)
            case Refused(retry_after_s=retry_after_s):
                assert retry_after_s is not None
                asked.refused = True
                self._world.later(retry_after_s, lambda: self._retry(asked))
            case Gone():
                if asked.accepted:  # decode had it and has lost it
                    self._again(asked)
                elif not asked.refused:
                    self._tell(asked)

    def _answered_by_prefill(
        self, asked: Asked, message: Accepted | Failed | Refused | Gone
    ) -> None:
        assert not isinstance(message, Refused)
        if isinstance(message, Failed):
            self._again(asked)
        elif isinstance(message, Gone):
            self._tell(asked)

    def _retry(self, asked: Asked) -> None:
        asked.refused = False
        if self.open.get(asked.expect.transfer) is asked:
            self._tell(asked)

    def _current(self, transfer: TransferId, attempt: int) -> Asked | None:
        asked = self.open.get(transfer)
        return asked if asked is not None and asked.expect.attempt == attempt else None

    def _had(self, run: TokenRun, *, by_decode: bool) -> None:
        asked = self._current(run.transfer, run.attempt)
        if asked is None:
            return
        asked.handed = asked.handed or by_decode
        had, expected = asked.had[run.sample], asked.expected[run.sample]
        assert list(run.tokens) == expected[run.index : run.index + len(run.tokens)]
        assert run.tokens
        last = run.index + len(run.tokens) == len(expected)
        assert (run.finish is not None) == last
        if run.index > len(had):
            return  # a message before it was lost
        had.extend(run.tokens[len(had) - run.index :])
        asked.finished[run.sample] = len(had) == len(expected)
        if asked.whole:
            self.n_answered += 1
            self._end(asked)

    def _acknowledge(self, runs: tuple[TokenRun, ...]) -> None:
        if self._world.random.random() < 0.3:
            return
        acks = [
            Ack(run.transfer, run.attempt, run.sample, len(asked.had[run.sample]))
            for run in runs
            if (asked := self._current(run.transfer, run.attempt)) is not None
        ]
        self._send(TokensAck(acks=tuple(acks)))

    def _beat(self) -> None:
        rows = [
            Listed(
                t,
                asked.expect.attempt,
                Phase.WAITING,
                tuple((s.sample, len(asked.had[s.sample])) for s in asked.expect.samples),
            )
            for t, asked in self.open.items()
        ]
        self._send(Heartbeat(transfers=tuple(rows), credit_tokens=self.credit_tokens))
        for instance in self._world.prefills:
            listed = [row for row in rows if self._is_computed_by(instance, row.transfer)]
            self._world.post(G, instance, Heartbeat(transfers=tuple(listed)))
        self._world.later(0.25, self._beat)

    def _is_computed_by(self, instance: InstanceId, transfer: TransferId) -> bool:
        """Until decode has it."""
        asked = self.open[transfer]
        prefill = asked.expect.prefill
        return prefill is not None and prefill.instance == instance and not asked.handed

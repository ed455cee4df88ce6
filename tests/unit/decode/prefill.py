"""A prefill worker as decode sees it: silent before the Accept, announcing, handing over, its
leases ending with their reader's interest. Its pages are new for every transfer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.ids import InstanceId, PageId, TransferId
from common.messages import (
    Accept,
    AnyMessage,
    Expect,
    Gone,
    HandedToken,
    Handoff,
    Heartbeat,
    Listed,
    PageRef,
    PagesReady,
    Phase,
    Release,
    TokenRun,
    Tokens,
)
from common.params import FinishReason
from tests.unit.decode.builders import G
from tests.unit.decode.memory import END, Content, chain, draw

if TYPE_CHECKING:
    from tests.unit.decode.world import World

Key = tuple[TransferId, int]


@dataclass
class _Prompt:
    request: Expect
    refs: list[PageRef]
    first: int | None = None  # pages that decode holds; None: it has not accepted
    n_ready: int = 0  # pages computed
    done: bool = False
    handed: tuple[HandedToken, ...] = field(default_factory=tuple)


class Prefiller:
    def __init__(self, world: "World", instance: InstanceId) -> None:
        self._world = world
        self._instance = instance
        self._prompts: dict[Key, _Prompt] = {}
        self._pages: dict[PageRef, Content] = {}
        self._n_pages = 0
        world.later(0.25, self._beat)

    @property
    def _alive(self) -> bool:
        return self._instance in self._world.prefills

    @property
    def idle(self) -> bool:
        return not any(prompt.first is not None for prompt in self._prompts.values())

    def content(self, ref: PageRef) -> Content | None:
        """None: it has been used again since that generation."""
        return self._pages.get(ref)

    def prefill(self, request: Expect) -> None:
        """The gateway's Prefill."""
        key = (request.transfer, request.attempt)
        if key in self._prompts:
            return
        page_tokens = self._world.bench.page_tokens
        (tokens, *_) = ((*request.prompt, *s.outputs) for s in request.samples)
        digests: list[int | None] = [*chain(tokens)]
        digests += [None] * (-len(digests) % page_tokens)
        refs: list[PageRef] = []
        for at in range(0, len(digests), page_tokens):
            ref = PageRef(PageId(self._n_pages), self._world.random.randrange(2**40))
            self._n_pages += 1
            self._pages[ref] = digests[at : at + page_tokens]
            refs.append(ref)
        prompt = self._prompts[key] = _Prompt(request, refs)
        self._later(lambda: self._compute(prompt))

    def _later(self, call: Callable[[], None]) -> None:
        self._world.later(self._world.random.expovariate(100), call)

    def _compute(self, prompt: _Prompt) -> None:
        """The next page; after the last one, the first tokens."""
        request = prompt.request
        if self._prompts.get((request.transfer, request.attempt)) is not prompt:
            return
        if prompt.n_ready + 1 < len(prompt.refs):
            prompt.n_ready += 1
            self._announce(prompt)
            self._later(lambda: self._compute(prompt))
            return
        prompt.done = True
        prompt.handed = tuple(self._first(prompt, s.sample, s.outputs) for s in request.samples)
        self._say_first(prompt)
        self._hand(prompt)

    @staticmethod
    def _first(prompt: _Prompt, sample: int, outputs: tuple[int, ...]) -> HandedToken:
        request = prompt.request
        token = draw(chain((*request.prompt, *outputs))[-1], sample, len(outputs))
        finish = None
        if token == END:
            finish = FinishReason.STOP
        elif len(outputs) + 1 == request.params.max_tokens:
            finish = FinishReason.LENGTH
        return HandedToken(sample, token, finish, None)

    def _say_first(self, prompt: _Prompt) -> None:
        request = prompt.request
        runs = [
            TokenRun(
                request.transfer,
                request.attempt,
                handed.sample,
                len(resume.outputs),
                (handed.token,),
                handed.finish,
            )
            for handed, resume in zip(prompt.handed, request.samples, strict=True)
        ]
        self._world.post(self._instance, G, Tokens(runs=tuple(runs)))

    # --- to decode ---------------------------------------------------------------------------

    def _send(self, message: AnyMessage, *, in_order: bool = True) -> None:
        if self._alive:
            self._world.post(self._instance, "core", message, in_order=in_order)

    def _announce(self, prompt: _Prompt) -> None:
        if prompt.first is None:
            return
        request = prompt.request
        pages = tuple(prompt.refs[prompt.first : prompt.n_ready])
        self._send(
            PagesReady(
                transfer=request.transfer,
                attempt=request.attempt,
                first=prompt.first,
                pages=pages,
            ),
            in_order=False,
        )

    def _hand(self, prompt: _Prompt) -> None:
        if prompt.first is None or not prompt.done:
            return
        if all(token.finish is not None for token in prompt.handed) and (
            self._world.random.random() < 0.5
        ):
            return  # answered: decode need never see it
        request = prompt.request
        message = Handoff(
            transfer=request.transfer,
            attempt=request.attempt,
            n_tokens=len(request.prompt) + len(request.samples[0].outputs),
            first=prompt.first,
            pages=tuple(prompt.refs[prompt.first :]),
            tokens=prompt.handed,
            cached_tokens=0,
        )
        self._send(message, in_order=False)

    def hear(self, message: AnyMessage, sender: str) -> None:
        if sender == G:
            return
        match message:
            case Accept(transfer=transfer, attempt=attempt, held=held):
                prompt = self._prompts.get((transfer, attempt))
                if prompt is not None:
                    assert prompt.first in (None, len(held))
                    prompt.first = len(held)
                    prompt.n_ready = max(prompt.n_ready, len(held))
                    self._announce(prompt)
                    self._hand(prompt)
            case Release(transfer=transfer, attempt=attempt):
                self._forget((transfer, attempt))
            case Heartbeat():
                self._digest({(r.transfer, r.attempt): r for r in message.transfers})
            case _:
                pass

    def _forget(self, key: Key) -> None:
        prompt = self._prompts.get(key)
        if prompt is not None and prompt.first is not None:
            self.ended(key)

    def ended(self, key: Key) -> None:
        """The gateway's End, or the reader's Release: its pages are used for something else."""
        prompt = self._prompts.pop(key, None)
        for ref in prompt.refs if prompt is not None else ():
            del self._pages[ref]

    def _digest(self, listed: dict[Key, Listed]) -> None:
        for key, row in listed.items():
            prompt = self._prompts.get(key)
            if prompt is None:
                self._send(Gone(transfer=key[0], attempt=key[1]))
            elif row.phase is Phase.ACCEPTED:
                self._hand(prompt)
        for key in [k for k, p in self._prompts.items() if p.first is not None]:
            if key not in listed:
                self._forget(key)

    def _beat(self) -> None:
        if not self._alive:
            return
        rows = [Listed(*k, Phase.ACCEPTED) for k, p in self._prompts.items() if p.first is not None]
        self._send(Heartbeat(transfers=tuple(rows)))
        for prompt in self._prompts.values():
            if prompt.done:
                self._say_first(prompt)
        self._world.later(0.25, self._beat)

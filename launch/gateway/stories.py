"""What became of requests: their attempts, and the stages of each at the workers. For traces.

Times are seconds, the clock's. Bounded: of more requests than are kept, the oldest are forgotten.
Must decide nothing, and know nothing of spans.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from common.engine.events import Event, Note, Received
from common.ids import InstanceId, TransferId
from common.messages import Marks
from common.moments import Moment
from launch.gateway.transfers import Generate

MAX_ANSWERS = 8192  # in flight and lately over


class Stage(NamedTuple):
    """Part of an attempt, at one worker. TRANSFER overlaps PREFILL: pages travel as they are
    computed."""

    name: str  # queue, prefill, transfer, decode
    worker: InstanceId
    begin: float
    end: float


class Seen(NamedTuple):
    at: float
    worker: InstanceId
    moment: Moment


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of one transfer."""

    number: int
    began: float
    decision: str  # remote, or local: the decode worker computes the prompt
    reason: str
    prefill: InstanceId | None
    decode: InstanceId
    ended: float | None = None
    trouble: str = ""  # why it failed
    seen: list[Seen] = field(default_factory=list[Seen])

    def stages(self, ended: float) -> list[Stage]:
        """`ended`: when those ended whose end no worker told of."""
        at: dict[tuple[InstanceId, Moment], float] = {}
        for seen in sorted(self.seen):
            at.setdefault((seen.worker, seen.moment), seen.at)
        computing = self.prefill or self.decode
        stages = (
            ("queue", computing, Moment.QUEUED, Moment.CONTEXT_BEGIN),
            ("prefill", computing, Moment.CONTEXT_BEGIN, Moment.CONTEXT_END),
            ("transfer", self.decode, Moment.MIGRATION_BEGIN, Moment.MIGRATION_END),
            ("decode", self.decode, Moment.DECODING_BEGIN, Moment.DECODING_END),
        )
        return [
            Stage(name, worker, at[worker, begin], at.get((worker, end), ended))
            for name, worker, begin, end in stages
            if (worker, begin) in at
        ]


@dataclass(slots=True, eq=False)
class Story:
    """Of one prompt."""

    generate: Generate
    arrived: float
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    first_token: float | None = None
    ended: float | None = None
    finish: str = ""  # stop, length, aborted, failed
    trouble: str = ""
    output_tokens: int = 0


class Stories:
    """A watcher."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: OrderedDict[str, list[Story]] = OrderedDict()
        self._stories: dict[str, Story] = {}  # by request
        self._attempts: dict[tuple[TransferId, int], tuple[Story, Attempt]] = {}
        self._keys: dict[str, list[tuple[TransferId, int]]] = {}  # of these, by request

    def take(self, answer: str) -> list[Story]:
        """Those of an HTTP request's prompts, and forget them."""
        stories = self._answers.pop(answer, [])
        for story in stories:
            self._stories.pop(story.generate.request, None)
            for key in self._keys.pop(story.generate.request, ()):
                self._attempts.pop(key, None)
        return stories

    def submitted(self, generate: Generate) -> None:
        answer, _, _ = generate.request.rpartition("-")
        story = self._stories[generate.request] = Story(generate, self._clock())
        self._answers.setdefault(answer, []).append(story)
        if len(self._answers) > MAX_ANSWERS:
            self.take(next(iter(self._answers)))

    def note(self, note: Note) -> None:
        request = note.fields.get("request")
        story = self._stories.get(request) if isinstance(request, str) else None
        if note.name == "routed" and story is not None:
            self._routed(story, note)
            return
        known = self._attempts.get((note.transfer, note.attempt))
        now = self._clock()
        if known is not None:
            story, attempt = known
            if note.name == "first_token" and story.first_token is None:
                story.first_token = now
            if note.name in ("failed", "finished", "aborted"):
                attempt.ended = now
            if note.name == "failed":
                attempt.trouble = str(note.fields.get("detail", ""))
        if story is not None and "request" in note.fields:
            self._end(story, note)

    def _routed(self, story: Story, note: Note) -> None:
        fields, key = note.fields, (note.transfer, note.attempt)
        prefill = fields.get("prefill")
        attempt = Attempt(
            number=note.attempt,
            began=self._clock(),
            decision=str(fields["decision"]),
            reason=str(fields["reason"]),
            prefill=InstanceId(prefill) if isinstance(prefill, str) else None,
            decode=InstanceId(str(fields["decode"])),
        )
        story.attempts.append(attempt)
        self._attempts[key] = story, attempt
        self._keys.setdefault(story.generate.request, []).append(key)

    def _end(self, story: Story, note: Note) -> None:
        """A note that names the request, and is not its first: it is over."""
        if note.name not in ("finished", "aborted", "failed"):
            return
        story.ended = self._clock()
        story.finish = str(note.fields.get("finish", note.name))
        tokens = note.fields.get("tokens", 0)
        story.output_tokens = tokens if isinstance(tokens, int) else 0
        if note.name == "failed":
            story.trouble = str(note.fields.get("detail", ""))

    def heard(self, event: Event) -> None:
        match event:
            case Received(sender, Marks(marks=marks)):
                now = self._clock()
                for mark in marks:
                    known = self._attempts.get((mark.transfer, mark.attempt))
                    if known is not None:
                        known[1].seen.append(Seen(now - mark.age_s, sender, mark.moment))
            case _:
                pass

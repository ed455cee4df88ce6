"""What is said, thought and called, as items: each begins, grows and is done before the next.

Must know nothing of the answer around them: `item_form` does.
"""

import uuid
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from launch.gateway.api.item_bodies import (
    ArgumentsDelta,
    ArgumentsDone,
    CallItem,
    Event,
    Item,
    ItemAdded,
    ItemDone,
    MessageItem,
    OutputText,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    Status,
    TextDelta,
    TextDone,
)
from launch.gateway.api.responses import ChatTokenLogprob
from launch.gateway.tools.reader import CallPart, Said


class Output:
    """`items` of one answer, in order. What is told of one is never changed after."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self.items: list[Item] = []  # the last one is growing, unless all are done
        self._new_call_id = new_call_id
        self._open: Item | None = None
        self._parts: list[str] = []  # of the open item's text
        self._space = ""  # may begin a message, or stand between two items and mean nothing
        self._scores: list[ChatTokenLogprob] = []  # of text that is still held back

    def take(self, said: Said, scores: Sequence[ChatTokenLogprob]) -> list[Event]:
        """What it adds. `scores`: of the tokens that were read for it."""
        self._scores += scores
        events: list[Event] = []
        if said.reasoning:
            events += self._think(said.reasoning)
        if said.text:
            events += self._say(said.text)
        for part in said.calls:
            events += self._call(part)
        return events

    def end(self, *, complete: bool) -> list[Event]:
        """Nothing more comes. There is a message, if there is nothing else."""
        events: list[Event] = []
        if not self.items:
            text = self._space
            events += self._begin_message()
            if text:
                events += self._more_text(text)
        return events + self.close("completed" if complete else "incomplete")

    def close(self, status: Status = "completed") -> list[Event]:
        """The open item, if there is one, grows no more."""
        item, self._open = self._open, None
        text, self._parts = "".join(self._parts), []
        if item is None:
            return []
        item.status = status
        at, events = len(self.items) - 1, list[Event]()
        match item:
            case MessageItem(id=name, content=[said]):
                said.text = text
                said.logprobs += self._scores
                self._scores = []
                done = TextDone(output_index=at, item_id=name, text=text, logprobs=said.logprobs)
                events += [done, PartDone(output_index=at, item_id=name, part=said)]
            case ReasoningItem(id=name, content=[thought]):
                thought.text = text
                events.append(ReasoningDone(output_index=at, item_id=name, text=text))
                events.append(PartDone(output_index=at, item_id=name, part=thought))
            case CallItem(id=name):
                item.arguments = text
                events.append(
                    ArgumentsDone(output_index=at, item_id=name, name=item.name, arguments=text)
                )
            case _:
                raise AssertionError(item)
        return [*events, ItemDone(output_index=at, item=item)]

    # --- what there may be -------------------------------------------------------------------

    def _think(self, text: str) -> list[Event]:
        self._scores.clear()  # told of messages alone
        events: list[Event] = []
        if not isinstance(self._open, ReasoningItem):
            item = ReasoningItem(
                id=_new_id("rs"), status="in_progress", content=[ReasoningText(text="")]
            )
            events += self._begin(item, replace(item, content=[]))
            events.append(self._part(ReasoningText(text="")))
        self._parts.append(text)
        at, name = self._place
        return [*events, ReasoningDelta(output_index=at, item_id=name, delta=text)]

    def _say(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, MessageItem):
            self._space += text
            if self._space.isspace():
                return []
            text = self._space
            events += self._begin_message()
        return events + self._more_text(text)

    def _begin_message(self) -> list[Event]:
        item = MessageItem(id=_new_id("msg"), status="in_progress", content=[OutputText(text="")])
        events = self._begin(item, replace(item, content=[]))
        return [*events, self._part(OutputText(text=""))]

    def _more_text(self, text: str) -> list[Event]:
        assert isinstance(self._open, MessageItem)
        scores, self._scores = self._scores, []
        self._open.content[0].logprobs += scores
        self._parts.append(text)
        at, name = self._place
        return [TextDelta(output_index=at, item_id=name, delta=text, logprobs=scores)]

    def _call(self, part: CallPart) -> list[Event]:
        self._scores.clear()
        events: list[Event] = []
        if part.name is not None:
            item = CallItem(
                id=_new_id("fc"),
                status="in_progress",
                call_id=self._new_call_id(),
                name=part.name,
                arguments="",
            )
            events += self._begin(item, replace(item))
        if part.arguments:
            self._parts.append(part.arguments)
            at, name = self._place
            events.append(ArgumentsDelta(output_index=at, item_id=name, delta=part.arguments))
        return events

    def _begin(self, item: Item, empty: Item) -> list[Event]:
        """`empty`: as it is told now, for it will grow."""
        events = self.close()
        self._space = ""
        self.items.append(item)
        self._open = item
        return [*events, ItemAdded(output_index=len(self.items) - 1, item=empty)]

    def _part(self, part: OutputText | ReasoningText) -> PartAdded:
        at, name = self._place
        return PartAdded(output_index=at, item_id=name, part=part)

    @property
    def _place(self) -> tuple[int, str]:
        """Of the last item: its index and its id."""
        return len(self.items) - 1, self.items[-1].id


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"

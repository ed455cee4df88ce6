"""Prompts as a scheduler sees them."""

from msgspec import structs

from common.ids import InstanceId, PageId, TransferId
from common.messages import Accept, Prefill, Resume
from common.params import SamplingParams
from prefill.pace import Cost
from prefill.state import Phase, Prompt

EVEN = Cost(token_s=0.001, pair_s=0.0)


def prompt(
    name: str = "a", n: int = 30, *, arrived: float = 0.0, due: float = 1.0, accepted: bool = True
) -> Prompt:
    request = Prefill(
        transfer=TransferId(name),
        attempt=1,
        prompt=tuple(range(n)),
        samples=(Resume(0),),
        params=SamplingParams(max_tokens=1, seed=0),
        decode=InstanceId("d"),
    )
    accept = Accept(transfer=request.transfer, attempt=1, held=())
    made = Prompt(request, InstanceId("g"), arrived, due, request.prompt, (), 0)
    made.accept = accept if accepted else None
    return made


def stating(name: str, n: int, *, due: float = 1.0) -> Prompt:
    """A prompt that states a deadline."""
    made = prompt(name, n, due=due)
    made.request = structs.replace(made.request, deadline_s=due)
    return made


def computed(name: str, n: int, *, accepted: bool, due: float) -> Prompt:
    made = prompt(name, n, due=due, accepted=accepted)
    made.phase, made.done, made.planned = Phase.COMPUTED, n, n
    made.pages = [PageId(p) for p in range(n // 10)]
    return made

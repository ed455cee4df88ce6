"""Tokens are sent as they come, kept until they were heard, and sent again when they were lost."""

from collections.abc import Iterable

from common.engine.events import Launch, Note, PeerUp, Send
from common.engine.plan import Drawn, PassResult
from common.ids import InstanceId, TransferId
from common.messages import Ack, Expect, Heartbeat, Listed, Phase, Tokens, TokensAck
from common.params import FinishReason, TokenLogprob
from tests.unit.decode.builders import Bench, G, P, T, ended, expect, handoff, hello, run

G2 = InstanceId("gateway-2")


def beat(*had: int, credit: int | None = None, transfer: TransferId = T) -> Heartbeat:
    """The gateway has these many tokens of each sample."""
    row = Listed(transfer, 1, Phase.DECODING, tuple(enumerate(had)))
    return Heartbeat(transfers=(row,), credit_tokens=credit)


def ack(next_index: int, sample: int = 0, attempt: int = 1) -> TokensAck:
    return TokensAck(acks=(Ack(T, attempt, sample, next_index),))


def speak(bench: Bench, request: Expect, tokens: Iterable[int]) -> None:
    bench.hear(request)
    for token in tokens:
        bench.done(token)


def test_a_step_is_one_message_a_gateway() -> None:
    bench = Bench()
    bench.take(PeerUp(hello(G2)))
    bench.hear(expect(prefill=None, samples=2))
    bench.hear(expect(5, transfer="u", prefill=None), sender=G2)
    bench.done(50, 51)
    assert bench.runs == [run(0, 50, cached=0), run(0, 51, sample=1, cached=0)]
    bench.done(52, 53, 54)
    assert [(peer, message.runs) for peer, message in bench.tokens_sent] == [
        (G, (run(1, 52), run(1, 53, sample=1))),
        (G2, (run(0, 54, transfer="u", cached=4),)),
    ]


def test_the_next_pass_is_launched_before_the_last_ones_tokens_are_sent() -> None:
    bench = Bench()
    speak(bench, expect(prefill=None), [50])
    kinds = [
        type(action.message if isinstance(action, Send) else action) for action in bench.actions
    ]
    assert kinds.index(Launch) < kinds.index(Tokens)


def test_the_finish_comes_with_the_last_token() -> None:
    bench = Bench()
    speak(bench, expect(prefill=None, end=(0,)), [50, 0])
    assert bench.runs == [run(1, 0, finish=FinishReason.STOP)]


def test_an_index_listed_twice_in_a_row_is_sent_again_from_there() -> None:
    bench = Bench()
    speak(bench, expect(prefill=None, max_tokens=4), [50, 51, 52, 53])
    bench.hear(beat(1))
    assert bench.runs == []  # it may be on its way
    bench.hear(beat(1))
    assert bench.runs == [run(1, 51, 52, 53, finish=FinishReason.LENGTH)]
    bench.hear(beat(1))
    assert bench.runs == []
    bench.hear(beat(1))
    assert len(bench.runs) == 1


def test_one_that_goes_on_is_not_behind() -> None:
    bench = Bench()
    speak(bench, expect(prefill=None, max_tokens=9), [50, 51, 52, 53])
    for had in (1, 2, 3, 4, 4, 4):
        bench.hear(beat(had))
        assert bench.runs == []


def test_what_the_first_message_said_is_said_again() -> None:
    bench = Bench()
    speak(bench, expect(prefill=None), [50])
    bench.hear(beat(0))
    bench.hear(beat(0))
    assert bench.runs == [run(0, 50, cached=0)]


def test_logprobs_are_kept_until_they_were_heard() -> None:
    bench = Bench()
    bench.hear(expect(prefill=None, max_tokens=9, logprobs=0))
    logprobs = [TokenLogprob(50 + n, -1.0, 1, (), ()) for n in range(4)]
    for logprob in logprobs:
        drawn = Drawn(token=logprob.token, logprob=logprob)
        bench.done(result=PassResult(drawn=(drawn,)))
    bench.hear(ack(2))
    bench.hear(beat(3))
    bench.hear(beat(3))
    assert [(r.index, r.logprobs) for r in bench.runs] == [(3, (logprobs[3],))]


def test_each_sample_is_resent_by_itself() -> None:
    bench = Bench()
    bench.hear(expect(prefill=None, samples=2))
    bench.done(50, 60)
    bench.done(51, 61)
    bench.hear(beat(2, 1))
    bench.hear(beat(2, 1))
    assert bench.runs == [run(1, 61, sample=1)]


def test_without_credit_a_gateways_sequences_are_parked_until_it_has_heard() -> None:
    bench = Bench()
    bench.take(PeerUp(hello(G2)))
    bench.hear(Heartbeat(transfers=(), credit_tokens=2))
    speak(bench, expect(prefill=None, max_tokens=9), [50, 51])
    assert bench.launched is None
    bench.hear(expect(5, transfer="u", prefill=None), sender=G2)
    assert bench.launched is not None  # only that gateway's wait
    bench.hear(ack(1))
    bench.done(60)
    assert {draw.transfer for draw in bench.plan.draws} == {T, "u"}


def test_a_digest_that_acknowledges_gives_credit_too() -> None:
    bench = Bench()
    bench.hear(Heartbeat(transfers=(), credit_tokens=2))
    speak(bench, expect(prefill=None, max_tokens=9), [50, 51])
    bench.hear(beat(0))
    assert bench.launched is None
    bench.hear(beat(2))
    assert bench.launched is not None


def test_more_credit_lets_it_go_on() -> None:
    bench = Bench()
    bench.hear(Heartbeat(transfers=(), credit_tokens=2))
    speak(bench, expect(prefill=None, max_tokens=9), [50, 51])
    bench.hear(beat(0, credit=3))
    assert bench.launched is not None


def test_an_end_gives_its_credit_back() -> None:
    bench = Bench()
    bench.hear(Heartbeat(transfers=(), credit_tokens=2))
    speak(bench, expect(prefill=None, max_tokens=9), [50, 51])
    bench.hear(expect(5, transfer="u", prefill=None))
    assert bench.launched is None
    bench.hear(ended())
    assert bench.launched is not None


def test_a_parked_sequence_gives_its_pages_to_one_that_can_run() -> None:
    bench = Bench(n_pages=11, cache=False)
    bench.take(PeerUp(hello(G2)))
    bench.hear(Heartbeat(transfers=(), credit_tokens=1))
    speak(bench, expect(8, prefill=None, max_tokens=13), [50])
    for name in "uv":
        bench.hear(expect(8, transfer=name, prefill=None, max_tokens=13), sender=G2)
    names: list[str] = []
    while bench.launched:
        bench.done(*(60 for _ in bench.plan.draws))
        names += [f"{note.transfer} {note.name}" for note in bench.did(Note)]
    assert [name for name in names if "ed" in name] == [
        "t preempted"
    ]  # and not let in again: it could say nothing
    bench.hear(ack(1))
    assert [note.name for note in bench.did(Note)] == ["resumed"]
    said = 1
    while bench.launched:
        bench.done(*(60 for _ in bench.plan.draws))
        said += sum(len(r.tokens) for r in bench.runs)
        bench.hear(ack(said))
    assert said == 13


def test_a_page_that_is_copied_is_nobodys_until_the_pass_is_final() -> None:
    """Its last holder is parked, and gives way in the very pass that copies it."""
    bench = Bench(n_pages=8, cache=False)
    bench.take(PeerUp(hello(G2)))
    bench.hear(Heartbeat(transfers=(), credit_tokens=3))
    bench.hear(expect(6, samples=2, max_tokens=2))
    pair = [expect(4, transfer=name, prefill=None, max_tokens=6) for name in "uv"]
    bench.hear(*pair, sender=G2)
    for token in range(50, 54):
        bench.done(token, token)
    bench.hear(handoff(0, 1, tokens=(60, 61)), sender=P)
    bench.pulled()
    bench.done(54, 54)  # u and v each need a page now, and there is one
    assert [note.name for note in bench.did(Note)] == ["preempted"]
    ((source, _),) = bench.plan.copies
    assert [(d.transfer, d.sample) for d in bench.plan.draws] == [(T, 0), ("u", 0)]
    assert source not in bench.plan.slots_T // 4
    assert bench.pool.n_available == 0
    bench.done(70, 55)
    assert "v" in [draw.transfer for draw in bench.plan.draws]


def test_acks_of_others_and_of_what_was_not_sent_do_nothing() -> None:
    bench = Bench()
    bench.hear(Heartbeat(transfers=(), credit_tokens=1))
    speak(bench, expect(prefill=None, max_tokens=9), [50])
    bench.hear(ack(1), sender=G2)
    bench.hear(ack(1, attempt=2))
    bench.hear(ack(1, sample=1))
    assert bench.launched is None
    bench.hear(ack(99))
    bench.done(51)
    assert bench.launched is None

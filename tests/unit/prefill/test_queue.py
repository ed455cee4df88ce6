"""What is taken, what is refused, and what another attempt or a repetition does."""

from common.engine.events import Drain, Note, PeerDown
from common.ids import InstanceId
from common.messages import Accepted, Handoff, Heartbeat, PagesReady, Phase, Refused, Resume
from tests.unit.prefill.builders import Bench, D, G, T, accept, ended, listing, prefill, release

A1 = Accepted(transfer=T, attempt=1)


def refused(bench: Bench) -> tuple[str, float | None]:
    (answer,) = bench.said(Refused, G)
    return answer.reason, answer.retry_after_s


def test_a_prompt_is_accepted_and_computed() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    assert bench.said(Accepted, G) == [A1]
    assert bench.did(Note)[:1] == [Note(T, 1, "queued", {"prompt_tokens": 6})]
    assert bench.rows == [[1, 2, 3, 4, 5, 6]]
    assert bench.notes == ["queued", "context_begin"]


def test_the_same_prompt_again_is_accepted_again_and_computed_once() -> None:
    bench = Bench()
    bench.hear(prefill(6), prefill(6))
    assert bench.said(Accepted, G) == [A1, A1]
    assert len(bench.rows) == 1
    bench.done(50)
    bench.hear(prefill(6))
    assert bench.said(Accepted, G) == [A1]
    assert bench.launched is None


def test_an_older_attempt_is_dropped_and_counted() -> None:
    bench = Bench()
    bench.hear(prefill(attempt=2))
    bench.hear(prefill(attempt=1))
    assert bench.actions == ()
    assert bench.core.stale_messages == 1


def test_a_newer_attempt_ends_the_older() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.hear(prefill(6, attempt=2))
    assert bench.said(Accepted, G) == [Accepted(transfer=T, attempt=2)]
    assert bench.notes[:2] == ["aborted", "queued"]
    assert bench.pool.n_held == 2  # the pass still writes them
    bench.done(50)
    assert bench.rows == [[1, 2, 3, 4, 5, 6]]  # the new attempt's: nothing of the old was kept
    assert bench.pool.n_held == 2


def test_an_end_of_an_older_attempt_changes_nothing() -> None:
    bench = Bench()
    bench.hear(prefill(attempt=2))
    bench.hear(ended(attempt=1))
    assert bench.notes == []
    bench.hear(ended(attempt=2))
    assert bench.notes == ["aborted"]
    bench.done(50)
    assert bench.core.idle
    assert bench.pool.n_held == 0


def test_an_end_of_a_newer_attempt_ends_the_older_whose_end_was_lost() -> None:
    bench = Bench()
    bench.hear(prefill(attempt=1))
    bench.hear(ended(attempt=3))
    bench.done(50)
    assert bench.core.idle


def test_what_never_fits_is_refused_without_a_time() -> None:
    bench = Bench(n_pages=4, max_model_len=18)
    bench.hear(prefill(17))
    assert refused(bench) == ("17 tokens of 16 that fit the KV cache", None)
    bench.hear(prefill(18))
    assert refused(bench) == ("18 tokens of 17 that fit the context", None)
    bench.hear(prefill(16))
    assert bench.said(Accepted, G) == [A1]


def test_the_bound_of_the_queue_is_final() -> None:
    bench = Bench(n_pages=4, max_waiting=2)
    for n in range(3):
        bench.hear(prefill(16, transfer=f"t{n}"))  # one runs, the others find no pages
        assert len(bench.said(Accepted)) == 1
    bench.hear(prefill(1, transfer="t3"))
    assert refused(bench) == ("2 prompts of 2 wait", 1.0)
    assert bench.core.stale_messages == 0
    bench.hear(ended("t1"))
    bench.hear(prefill(1, transfer="t3"))
    assert len(bench.said(Accepted)) == 1


def test_a_draining_worker_refuses_what_is_new_and_finishes_the_rest() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.take(Drain())
    bench.hear(prefill(6, transfer="new"))
    assert refused(bench) == ("draining", 1.0)
    assert not bench.core.idle
    bench.done(50)
    bench.hear(ended())
    assert bench.core.idle


def test_the_outputs_of_earlier_attempts_are_part_of_what_is_computed() -> None:
    bench = Bench()
    bench.hear(prefill((1, 2, 3), attempt=4, samples=(Resume(2, (50, 51)),)))
    assert bench.rows == [[1, 2, 3, 50, 51]]
    (draw,) = bench.plan.draws
    assert (draw.sample, draw.index, draw.row) == (2, 2, 4)
    assert (draw.prompt, draw.outputs) == ((1, 2, 3), (50, 51))
    bench.done(52)
    (run,) = bench.runs
    assert (run.sample, run.index, run.tokens, run.attempt) == (2, 2, (52,), 4)


def test_the_most_urgent_comes_first() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.hear(
        prefill((10, 11, 12), transfer="a"),
        prefill((20, 21, 22), transfer="b", deadline_s=0.1),
    )
    assert bench.rows == [[20, 21, 22], [10]]


def test_an_accept_that_overtakes_its_prefill_is_kept() -> None:
    bench = Bench()
    bench.hear(accept(), sender=D)
    assert bench.actions == ()
    bench.hear(prefill(9))
    assert len(bench.said(Accepted, G)) == 1
    assert [type(message) for message in bench.told(D)] == [PagesReady]
    bench.done(50)
    assert [type(message) for message in bench.told(D)] == [Handoff]


def test_an_early_accept_of_an_attempt_that_never_comes_is_forgotten() -> None:
    bench = Bench()
    bench.hear(accept(attempt=1), sender=D)
    bench.hear(listing((T, 1, Phase.ACCEPTED)), sender=D)
    assert bench.actions == ()  # it is known: no Gone
    bench.hear(Heartbeat(transfers=()), sender=D)
    bench.hear(prefill(9))
    assert not bench.told(D)  # nothing is said to decode before its Accept


def test_a_release_takes_its_early_accept_along() -> None:
    bench = Bench()
    bench.hear(accept(), release(), sender=D)
    bench.hear(prefill(9))
    assert not bench.told(D)


def test_a_lost_decode_worker_takes_its_early_accepts_along() -> None:
    bench = Bench()
    bench.hear(accept(), sender=D)
    other = InstanceId("decode-2")
    bench.hear(accept(), sender=other)
    bench.take(PeerDown(D))
    bench.hear(prefill(9))
    assert not bench.told(D)
    assert not bench.told(other)

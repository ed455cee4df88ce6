"""Who waits keeps what is cached of its prefix, while there is something else to evict."""

from common.engine.events import Launch
from common.kv.prefix import page_hashes
from tests.unit.decode.builders import FINGERPRINT, Bench, ended, expect


def tokens(first: int, n: int) -> tuple[int, ...]:
    return tuple(range(first, first + n))


def found(bench: Bench, first: int) -> list[bool]:
    """Of the two full pages of the nine tokens from `first` on."""
    hashes = page_hashes(tokens(first, 8), 4, fingerprint=FINGERPRINT, salt="")
    return [bench.pool.lookup(page_hash) is not None for page_hash in hashes]


def left(first: int, transfer: str, bench: Bench) -> None:
    """A request that is over: its two full pages are cached."""
    bench.hear(expect(tokens(first, 9), transfer=transfer, prefill=None, max_tokens=1))
    assert bench.did(Launch)
    bench.done(7)
    bench.hear(ended(transfer))


def test_a_queued_request_s_prefix_is_evicted_after_what_nobody_waits_for() -> None:
    bench = Bench(n_pages=8)
    left(1, "old", bench)
    left(50, "newer", bench)
    bench.hear(expect(tokens(100, 15), transfer="runs", prefill=None, max_tokens=14))
    bench.hear(expect(tokens(1, 11), transfer="waits", prefill=None, max_tokens=2))
    assert bench.pool.n_wants == 2
    while bench.pool.n_cached == 4:  # until it grows beyond what is free
        bench.done(7)
    assert (found(bench, 1), found(bench, 50)) == ([True, True], [True, False])
    bench.hear(ended("waits"), ended("runs"))
    assert bench.pool.n_wants == 0

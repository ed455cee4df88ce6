"""What paging costs: the memory that pages waste at chat-like lengths, CPU time per page, and the
time that a page takes to host memory and back.

`python -m bench.paging`. Runs the pool, the hashes and the host tier that the workers run, and
nothing else: no model, no process. One JSON line last.
"""

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from bench.flag_types import Parser, positive, whole
from common.ids import HostId, InstanceId, PageId
from common.kv.layout import pages_for
from common.kv.pages import PagePool
from common.kv.prefix import HashChain, page_hashes
from transfer.api import Copy, Status, Ticket
from transfer.memory import SharedPages
from transfer.tiers.host import HostPages, HostTier

MEAN_INPUT, MEAN_OUTPUT, SIGMA = 161, 338, 0.5  # tokens; the sigma of the lengths' logarithm
WASTE_LIMIT = 0.023
N_CACHED = 100_000
N_TIMED = 20_000
VOCAB = 50_000
N_SPILLED, PAGE_BYTES = 40, 368_640  # a sequence of 640 tokens of SmolLM2-135M in bfloat16
N_SPILLS = 15


@dataclass(slots=True)
class Chat:
    """A sequence of the batch: what it holds, and where it will end."""

    n_tokens: int
    end: int
    chain: HashChain
    pages: list[PageId] = field(default_factory=list[PageId])


class Batch:
    """A continuous batch that is always full: a sequence that ends is replaced at once."""

    def __init__(self, *, n_seqs: int, page_tokens: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.page_tokens = page_tokens
        n_pages = 4 * n_seqs * pages_for(MEAN_INPUT + MEAN_OUTPUT, page_tokens)
        self.pool = PagePool(n_pages, np.zeros(n_pages, np.uint64))
        self.running = [self.join() for _ in range(n_seqs)]

    def length(self, mean: int) -> int:
        """Log-normal with this mean: that of the logarithm is less by half the variance."""
        return max(1, round(self.random.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA)))

    def join(self) -> Chat:
        """A new text, so nothing is shared; a prompt's pages are taken whole."""
        n_prompt = self.length(MEAN_INPUT)
        chain = HashChain(self.page_tokens, fingerprint="bench", salt="")
        new = Chat(0, n_prompt + self.length(MEAN_OUTPUT), chain)
        self.grow(new, self.random.integers(0, VOCAB, n_prompt).tolist())
        return new

    def grow(self, chat: Chat, tokens: list[int]) -> None:
        """Take the pages that the tokens need, and publish those that they fill."""
        n_published = len(chat.chain.hashes)
        chat.n_tokens += len(tokens)
        chat.chain.extend(tokens)
        chat.pages += self.pool.take(pages_for(chat.n_tokens, self.page_tokens) - len(chat.pages))
        for n in range(n_published, len(chat.chain.hashes)):
            self.pool.publish(chat.pages[n], chat.chain.hashes[n])

    def step(self) -> None:
        """One decode step: every sequence gains a token, or leaves."""
        tokens = self.random.integers(0, VOCAB, len(self.running)).tolist()
        for b, (chat, token) in enumerate(zip(self.running, tokens, strict=True)):
            if chat.n_tokens < chat.end:
                self.grow(chat, [token])
            else:
                self.pool.give_back(chat.pages)
                self.running[b] = self.join()


def waste(*, n_seqs: int, n_steps: int, page_tokens: int, seed: int) -> float:
    """1 - tokens held / capacity of the pages held, both summed over a batch's steps.

    The first tenth of the steps is not counted: all sequences are young there.
    """
    batch = Batch(n_seqs=n_seqs, page_tokens=page_tokens, seed=seed)
    tokens = capacity = 0
    for step in range(n_steps):
        batch.step()
        if step >= n_steps // 10:
            tokens += sum(chat.n_tokens for chat in batch.running)
            capacity += batch.pool.n_held * page_tokens
    batch.pool.check()
    return 1 - tokens / capacity


def microseconds_per_page(page_tokens: int) -> dict[str, float]:
    """CPU time of each operation on a pool of which 100,000 pages are cached."""
    pool = PagePool(N_CACHED + N_TIMED, np.zeros(N_CACHED + N_TIMED, np.uint64))
    texts = np.random.default_rng(0).integers(0, VOCAB, (2, N_CACHED * page_tokens)).tolist()
    cached, new = (page_hashes(t, page_tokens, fingerprint="bench", salt="") for t in texts)
    old_pages = pool.take(N_CACHED)
    for page, page_hash in zip(old_pages, cached, strict=True):
        pool.publish(page, page_hash)
    pool.give_back(old_pages)
    taken = pool.take(N_TIMED)  # all that is free: the next ones evict
    found = pool.longest_prefix(cached[:N_TIMED])

    def insert() -> None:
        for page, page_hash in zip(taken, new, strict=False):
            pool.publish(page, page_hash)
        pool.give_back(taken)

    def hit() -> None:
        for page in found:
            pool.share(page)
        pool.give_back(found)

    def take() -> None:
        for _ in range(N_TIMED // 32):
            pool.take(32)

    def hash_pages() -> None:
        page_hashes(texts[1][: N_TIMED * page_tokens], page_tokens, fingerprint="bench", salt="")

    return {
        "lookup_us": _per_page(lambda: pool.longest_prefix(cached[:N_TIMED])),
        "insert_us": _per_page(insert),
        "hit_us": _per_page(hit),
        "evict_and_take_us": _per_page(take),
        "hash_us": _per_page(hash_pages),
    }


def _per_page(work: Callable[[], object]) -> float:
    """CPU time: the work is one thread's, and waits for nothing."""
    gc.collect()
    started = time.process_time()
    work()
    return (time.process_time() - started) / N_TIMED * 1e6


def to_host_and_back() -> dict[str, float]:
    """Microseconds a page, from asked for to final; the median of some, in random places."""
    n_pages = 4 * N_SPILLED
    pool, memory = SharedPages(n_pages, PAGE_BYTES), HostPages(n_pages, PAGE_BYTES)
    woken = threading.Event()
    tier = HostTier(pool, memory, instance=InstanceId("tier"), host=HostId("here"), wake=woken.set)
    random = np.random.default_rng(0)

    def seconds(start: Callable[[tuple[Copy, ...]], Ticket]) -> float:
        own, theirs = (random.permutation(n_pages)[:N_SPILLED].tolist() for _ in range(2))
        copies = tuple(Copy(PageId(a), 0, PageId(b)) for a, b in zip(own, theirs, strict=True))
        started = time.perf_counter()
        ticket = start(copies)
        while tier.transport.poll(ticket) is Status.PENDING:
            woken.wait()
            woken.clear()
        return time.perf_counter() - started

    spills = [seconds(tier.spill) for _ in range(N_SPILLS)]
    restores = [seconds(tier.restore) for _ in range(N_SPILLS)]
    tier.close()
    return {
        "spill_us": median(spills) / N_SPILLED * 1e6,
        "restore_us": median(restores) / N_SPILLED * 1e6,
    }


def main(argv: Sequence[str]) -> int:
    """Returns 1 if more is wasted than the limit."""
    parser = Parser(prog="python -m bench.paging", description=main.__doc__)
    parser.add_argument("--page-tokens", type=positive, default=16)
    parser.add_argument("--max-num-seqs", type=positive, default=64)
    parser.add_argument("--num-steps", type=positive, default=10_000)
    parser.add_argument("--seed", type=whole, default=0)
    options = parser.parse_all(argv)
    wasted = waste(
        n_seqs=options.max_num_seqs,
        n_steps=options.num_steps,
        page_tokens=options.page_tokens,
        seed=options.seed,
    )
    times = microseconds_per_page(options.page_tokens)
    print(
        f"{wasted:.2%} of the pages' memory is wasted (limit {WASTE_LIMIT:.1%}) at log-normal "
        f"lengths of {MEAN_INPUT} + {MEAN_OUTPUT} tokens, pages of {options.page_tokens}"
    )
    for name, value in times.items():
        print(f"{name.removesuffix('_us'):16} {value:6.2f} us a page at {N_CACHED:,} cached pages")
    copies = to_host_and_back()
    for name, value in copies.items():
        print(f"{name.removesuffix('_us'):16} {value:6.1f} us a page of {PAGE_BYTES:,} bytes")
    print(
        json.dumps(
            {"benchmark": "paging", "waste": wasted, "limit": WASTE_LIMIT, **times, **copies}
        )
    )
    return 0 if wasted <= WASTE_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A recorded trace through the product's prefix index: which share of blocks would be found?

    python -m bench.simulate.replay --trace FILE --capacity 1000,3000,6000,10000,30000,100000

FILE is one of Mooncake's traces (JSONL with `hash_ids`, blocks of 512 tokens). Each request's
blocks are looked up, and kept, one request after the other, in a pool of so many blocks:

- `lru`: each block is touched from head to tail, the least recently touched makes room;
- `product`: the rule of `common.kv.pages`, that files a sequence tail first.

The last line is JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench import reasons
from bench.flag_types import Parser, list_of, positive
from bench.traces import Row, read
from common.ids import PageHash
from common.kv.pages import PagePool

Touch = Callable[[PagePool, Sequence[PageHash]], int]
"""Look a request's blocks up, and keep them all; how many were there."""


def lru(pool: PagePool, blocks: Sequence[PageHash]) -> int:
    """Plain LRU: head to tail, each block by itself."""
    n_found = 0
    for block in blocks:
        page = pool.lookup(block)
        if page is None:
            (page,) = pool.take(1)
            pool.publish(page, block)
        else:
            pool.share(page)
            n_found += 1
        pool.give_back((page,))
    return n_found


def product(pool: PagePool, blocks: Sequence[PageHash]) -> int:
    """As workers do: the leading run is held, the rest is taken, all is given back at once."""
    found = pool.longest_prefix(blocks)
    for page in found:
        pool.share(page)
    new = pool.take(len(blocks) - len(found))
    for page, block in zip(new, blocks[len(found) :], strict=True):
        pool.publish(page, block)
    pool.give_back((*found, *new))
    return len(found)


POLICIES: dict[str, Touch] = {"lru": lru, "product": product}


def share_found(requests: Sequence[Sequence[PageHash]], n_blocks: int, touch: Touch) -> float:
    """Of all blocks of all requests, those that were in a pool of `n_blocks`; 0 to 1."""
    pool = PagePool(n_blocks, np.zeros(n_blocks, np.uint64))
    n_found = n_all = 0
    for blocks in requests:
        n_found += touch(pool, blocks)
        n_all += len(blocks)
        pool.drain_events()
    pool.check()
    return n_found / n_all if n_all else 0.0


def named(rows: Sequence[Row]) -> list[list[PageHash]]:
    """Each request's blocks, by name."""
    return [[PageHash(i.to_bytes(16, "little")) for i in row.hash_ids] for row in rows]


def main(argv: Sequence[str]) -> int:
    """Which share of a trace's blocks would be found in pools of several sizes."""
    parser = Parser(prog="python -m bench.simulate.replay", description=main.__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument(
        "--capacity",
        type=list_of(positive),
        default=[1000, 3000, 6000, 10_000, 30_000, 100_000],
        help="blocks [1000,3000,6000,10000,30000,100000]",
    )
    args = parser.parse_all(argv)
    try:
        reasons.must_be_readable("--trace", args.trace)
        requests = named(read(args.trace))
    except ValueError as error:
        parser.error(str(error))
    capacities: list[int] = args.capacity
    longest = max(map(len, requests), default=0)
    if longest == 0:
        parser.error(f"{args.trace} has no hash_ids")
    if min(capacities) < longest:
        parser.error(f"--capacity: a request has {longest} blocks")
    print(f"{'blocks':>10}" + "".join(f"{name:>12}" for name in POLICIES))
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for n_blocks in capacities:
        for name, touch in POLICIES.items():
            found[name].append(100 * share_found(requests, n_blocks, touch))
        print(f"{n_blocks:10}" + "".join(f"{found[name][-1]:10.2f} %" for name in POLICIES))
    shares = {name: [round(share, 2) for share in all_] for name, all_ in found.items()}
    result = {"requests": len(requests), "blocks": sum(map(len, requests)), "percent": shares}
    print(json.dumps({"benchmark": "replay", "capacity": capacities, **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

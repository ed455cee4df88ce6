"""Settings that lead a request along different paths, and a set of them that covers all pairs."""

from dataclasses import dataclass
from itertools import product

POOLS = ((1, 1), (2, 1), (1, 2), (2, 2))  # prefill and decode workers


@dataclass(frozen=True, slots=True)
class Settings:
    """What the path of a request depends on, and its answer must not."""

    pools: tuple[int, int]
    transport: str
    caching: bool
    chunk_tokens: int
    ample: bool  # pages for all; else so few that sequences must give way

    def __str__(self) -> str:
        prefill, decode = self.pools
        cache = "cached" if self.caching else "uncached"
        room = "ample" if self.ample else "tight"
        return f"{prefill}x{decode}-{self.transport}-{cache}-{self.chunk_tokens}-{room}"

    def flags(self) -> list[str]:
        prefill, decode = self.pools
        return [
            f"--prefill={prefill}",
            f"--decode={decode}",
            "--disaggregate=always",
            f"--transport={self.transport}",
            f"--{'' if self.caching else 'no-'}enable-prefix-caching",
            f"--prefill.chunk-tokens={self.chunk_tokens}",
            f"--decode.chunk-tokens={self.chunk_tokens}",
            f"--kv-cache-memory-bytes={'256MiB' if self.ample else '72MiB'}",
            "--dtype=float32",
        ]


def covering() -> list[Settings]:
    """Every value of every setting beside every value of every other: an orthogonal array."""
    return [
        Settings(
            pools=pools,
            transport=("shm", "tcp")[last],
            caching=not last ^ first,
            chunk_tokens=(16, 512)[last ^ second],
            ample=not last ^ first ^ second,
        )
        for (n, pools), last in product(enumerate(POOLS), (0, 1))
        for first, second in [divmod(n, 2)]
    ]

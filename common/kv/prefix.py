"""Names of full pages, chained so that a hash stands for everything before it too; and who is
bringing a page that is not there yet.

Each side computes the names from its own token ids; they never cross the wire with content.
Decides only: no tensor, no clock, no randomness.
"""

from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

import numpy as np

from common.ids import PageHash, PageId

HASH_BYTES = 16
TOKEN_BYTES = 4

Who = TypeVar("Who", bound=Hashable)


def pages_fingerprint(model: str, kv_dtype: str) -> str:
    """Of a model's pages, from its own: in another dtype they have other names."""
    return f"{model} {kv_dtype}"


def root_hash(*, fingerprint: str, salt: str) -> PageHash:
    """The parent of every first page: models and tenants that differ never share."""
    digest = blake2b(digest_size=HASH_BYTES)
    for text in (fingerprint, salt):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little"))  # so that no two pairs run together
        digest.update(data)
    return PageHash(digest.digest())


def page_hashes(
    tokens: Sequence[int],
    page_tokens: int,
    *,
    fingerprint: str,
    salt: str,
    parent: PageHash | None = None,
) -> tuple[PageHash, ...]:
    """One hash a full page of `tokens` (ids < 2**32); the rest of the tokens has none.

    hash = blake2b-128(parent's hash, the page's ids as little-endian uint32). `parent` is the
    hash of the page before tokens[0]; None: the root.
    """
    if parent is None:
        parent = root_hash(fingerprint=fingerprint, salt=salt)
    return tuple(_chain(tokens, page_tokens, parent))


def _chain(tokens: Sequence[int], page_tokens: int, parent: PageHash) -> list[PageHash]:
    n_full = len(tokens) // page_tokens
    data = np.asarray(tokens[: n_full * page_tokens], "<u4").tobytes()
    step = page_tokens * TOKEN_BYTES
    hashes: list[PageHash] = []
    for at in range(0, len(data), step):
        parent = PageHash(blake2b(parent + data[at : at + step], digest_size=HASH_BYTES).digest())
        hashes.append(parent)
    return hashes


class HashChain:
    """The hashes of one growing sequence. A token costs a list append; a full page one blake2b."""

    def __init__(self, page_tokens: int, *, fingerprint: str, salt: str) -> None:
        self._page_tokens = page_tokens
        self._last = root_hash(fingerprint=fingerprint, salt=salt)
        self._tail: list[int] = []  # of the page that is not full yet
        self.hashes: list[PageHash] = []  # one a full page, in order; read, never written

    @property
    def n_tokens(self) -> int:
        return len(self.hashes) * self._page_tokens + len(self._tail)

    def append(self, token: int) -> None:
        self._tail.append(token)
        if len(self._tail) == self._page_tokens:
            self._close_pages()

    def extend(self, tokens: Iterable[int]) -> None:
        self._tail.extend(tokens)
        if len(self._tail) >= self._page_tokens:
            self._close_pages()

    def _close_pages(self) -> None:
        new = _chain(self._tail, self._page_tokens, self._last)
        self.hashes += new
        self._last = new[-1]
        del self._tail[: len(new) * self._page_tokens]


class PendingPages(Generic[Who]):
    """Pages that somebody is pulling or computing, by the hash they will be published under.

    So that 16 handoffs of one prefix move it once: whoever wants a page that is claimed waits,
    and looks again when it is done (then it is in the pool) or has failed (then one may claim it).
    Every claim ends in `done` or `failed`.
    """

    def __init__(self) -> None:
        self._entries: dict[PageHash, tuple[Who, PageId | None]] = {}
        self._claims: dict[Who, dict[PageHash, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def claim(self, page_hash: PageHash, who: Who, page: PageId | None = None) -> bool:
        """True: `who` brings it (into `page`), now or already; False: somebody else does."""
        entry = self._entries.get(page_hash)
        if entry is not None:
            return entry[0] == who
        self._entries[page_hash] = (who, page)
        self._claims.setdefault(who, {})[page_hash] = None
        return True

    def bringer(self, page_hash: PageHash) -> Who | None:
        """Who brings it; None: nobody."""
        entry = self._entries.get(page_hash)
        return None if entry is None else entry[0]

    def page(self, page_hash: PageHash) -> PageId | None:
        """The local page that will hold it, if its bringer has said."""
        entry = self._entries.get(page_hash)
        return None if entry is None else entry[1]

    def done(self, page_hash: PageHash) -> None:
        """It is published, whoever brought it. Idempotent."""
        entry = self._entries.pop(page_hash, None)
        if entry is None:
            return
        claims = self._claims[entry[0]]
        del claims[page_hash]
        if not claims:
            del self._claims[entry[0]]

    def failed(self, who: Who) -> tuple[PageHash, ...]:
        """`who` brings nothing any more: the hashes to retry, in the order they were claimed."""
        hashes = tuple(self._claims.pop(who, {}))
        for page_hash in hashes:
            del self._entries[page_hash]
        return hashes

"""Hashes of pages: chained, separated by tenant and model, incremental; and pending pages."""

from hashlib import blake2b

import pytest

from common.ids import PageHash, PageId
from common.kv.prefix import (
    HashChain,
    PendingPages,
    page_hashes,
    pages_fingerprint,
    root_hash,
)


def hashes(
    tokens: list[int], page_tokens: int = 4, *, fingerprint: str = "m", salt: str = ""
) -> tuple[PageHash, ...]:
    return page_hashes(tokens, page_tokens, fingerprint=fingerprint, salt=salt)


def test_a_hash_is_blake2b_of_the_parent_and_the_ids_as_little_endian_uint32() -> None:
    root = root_hash(fingerprint="m", salt="")
    data = b"".join(n.to_bytes(4, "little") for n in (1, 2, 3, 49_151))
    expected = blake2b(root + data, digest_size=16).digest()
    assert hashes([1, 2, 3, 49_151]) == (expected,)


def test_only_full_pages_have_hashes() -> None:
    assert hashes([1, 2, 3]) == ()
    assert len(hashes([1] * 11)) == 2


def test_a_hash_stands_for_everything_before_it() -> None:
    a, b = hashes([1, 2, 3, 4, 5, 6, 7, 8]), hashes([9, 2, 3, 4, 5, 6, 7, 8])
    assert a[0] != b[0]
    assert a[1] != b[1]
    assert hashes([1, 2, 3, 4, 9, 9, 9, 9])[0] == a[0]


def test_a_repeated_page_has_another_hash() -> None:
    first, second = hashes([7, 7, 7, 7, 7, 7, 7, 7])
    assert first != second


@pytest.mark.parametrize(
    ("fingerprint", "salt"), [("n", ""), ("m", "tenant"), ("mt", "enant"), ("", "m")]
)
def test_models_and_tenants_never_share(fingerprint: str, salt: str) -> None:
    other = hashes([1, 2, 3, 4], fingerprint=fingerprint, salt=salt)
    assert other != hashes([1, 2, 3, 4])
    prints = {pages_fingerprint(*of) for of in (("m", "float32"), ("m", "fp8"), ("n", "fp8"))}
    assert len({root_hash(fingerprint=of, salt="") for of in prints}) == 3
    assert root_hash(fingerprint="m", salt="tenant") != root_hash(fingerprint="mt", salt="enant")


def test_hashing_goes_on_from_a_parent() -> None:
    tokens = list(range(12))
    whole = hashes(tokens)
    rest = page_hashes(tokens[4:], 4, fingerprint="m", salt="", parent=whole[0])
    assert rest == whole[1:]


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 9, 40])
def test_a_chain_that_grows_gives_the_same_hashes(piece: int) -> None:
    tokens = list(range(100, 140))
    chain = HashChain(4, fingerprint="m", salt="s")
    for at in range(0, len(tokens), piece):
        chain.extend(tokens[at : at + piece])
    assert tuple(chain.hashes) == hashes(tokens, salt="s")
    assert chain.n_tokens == 40


def test_appending_one_token_at_a_time_is_extending() -> None:
    chain = HashChain(4, fingerprint="m", salt="")
    for token in range(10):
        chain.append(token)
    assert tuple(chain.hashes) == hashes(list(range(10)))
    assert chain.n_tokens == 10


# --- pending pages ---------------------------------------------------------------------------

H1, H2 = PageHash(b"1" * 16), PageHash(b"2" * 16)


def test_sixteen_handoffs_of_one_prefix_move_it_once() -> None:
    pending: PendingPages[str] = PendingPages()
    claims = [pending.claim(H1, f"transfer {n}") for n in range(16)]
    assert claims == [True] + [False] * 15
    assert pending.bringer(H1) == "transfer 0"


def test_claiming_again_is_idempotent_and_names_the_page() -> None:
    pending: PendingPages[str] = PendingPages()
    assert pending.claim(H1, "a", PageId(7))
    assert pending.claim(H1, "a", PageId(8))
    assert pending.page(H1) == 7
    assert pending.page(H2) is None


def test_when_the_bringer_fails_the_next_waiter_may_claim() -> None:
    pending: PendingPages[str] = PendingPages()
    pending.claim(H1, "a")
    pending.claim(H2, "a")
    assert pending.failed("a") == (H1, H2)
    assert pending.bringer(H1) is None
    assert pending.claim(H1, "b")
    assert pending.failed("a") == ()


def test_what_is_done_is_not_retried_and_leaves_nothing_behind() -> None:
    pending: PendingPages[str] = PendingPages()
    pending.claim(H1, "a")
    pending.claim(H2, "a")
    pending.done(H1)
    pending.done(H1)
    assert pending.failed("a") == (H2,)
    assert len(pending) == 0

import numpy as np
import pytest
import torch

from common.errors import InvariantBroken
from common.ids import PageId
from common.kv.cache import KVCache
from common.kv.layout import FP8, KVSpec

SPEC = KVSpec(n_layers=3, n_kv_heads=2, head_dim=80, page_tokens=4, dtype="bfloat16")


def test_layers_are_views_of_the_pages() -> None:
    pages = np.zeros((5, SPEC.page_bytes), np.uint8)
    cache = KVCache(SPEC, pages)
    assert cache.n_pages == 5
    for layer in range(3):
        cache.layer(layer).k_PSGD[4, 3, 1] = 1 + layer
        cache.layer(layer).v_PSGD[4, 0, 0] = -1 - layer
    page = torch.from_numpy(pages[4, : SPEC.used_bytes]).view(torch.bfloat16).view(SPEC.shape)
    assert page.count_nonzero() == 6 * 80
    for layer in range(3):
        assert (page[layer, 0, 1, 3] == 1 + layer).all()
        assert (page[layer, 1, 0, 0] == -1 - layer).all()
    assert not pages[:4].any()


def test_scales_follow_the_numbers_of_a_page() -> None:
    spec = KVSpec(n_layers=2, n_kv_heads=3, head_dim=6, page_tokens=2, dtype=FP8)
    assert (spec.scales_at, spec.used_bytes) == (2 * 2 * 3 * 2 * 6, 2 * 2 * 3 * 2 * (6 + 4))
    pages = np.zeros((3, spec.page_bytes), np.uint8)
    cache = KVCache(spec, pages)
    for layer in range(2):
        k, v = cache.layer(layer).k_scales_PSG, cache.layer(layer).v_scales_PSG
        assert k is not None
        assert v is not None
        k[2, 1, 2], v[2, 0, 1] = 1 + layer, -1 - layer
        cache.layer(layer).k_PSGD.view(torch.uint8)[2, 1, 2] = 56 + layer
    page = torch.from_numpy(pages[2])
    scales = page[spec.scales_at : spec.used_bytes].view(torch.float32).view(spec.shape[:-1])
    numbers = page[: spec.scales_at].view(torch.float8_e4m3fn).view(spec.shape).float()
    assert (scales.count_nonzero(), numbers.count_nonzero()) == (4, 2 * 6)
    for layer in range(2):
        assert (scales[layer, 0, 2, 1], scales[layer, 1, 1, 0]) == (1 + layer, -1 - layer)
        assert (numbers[layer, 0, 2, 1] == 1 + layer / 8).all()
    assert not page[spec.used_bytes :].any()
    assert not pages[:2].any()


def test_copying_a_page() -> None:
    pages = np.arange(3 * SPEC.page_bytes, dtype=np.uint32).astype(np.uint8)
    pages = pages.reshape(3, SPEC.page_bytes) ^ np.arange(3, dtype=np.uint8)[:, None]
    before = pages.copy()
    KVCache(SPEC, pages).copy_page(PageId(2), PageId(0))
    assert (pages == before[[2, 1, 2]]).all()


@pytest.mark.parametrize(
    "pages",
    [
        np.zeros((5, SPEC.used_bytes), np.uint8),
        np.zeros((5, 2 * SPEC.page_bytes), np.uint8)[:, ::2],
    ],
)
def test_other_memory_is_refused(pages: np.ndarray) -> None:
    with pytest.raises(InvariantBroken, match=str(SPEC.page_bytes)):
        KVCache(SPEC, pages)

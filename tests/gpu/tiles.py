"""How fast attention is with other tiles, where it was too slow: each is shown when it was timed,
as many as there is time for. `bench.kernels_tune` takes all of it, and leaves out what spills."""

from collections.abc import Iterator, Mapping
from itertools import chain, zip_longest

from bench.kernels_tune import decode_launches, milliseconds, prefill_launches, shapes_named
from common.kernels.triton.configs import Tile
from common.kernels.triton.launch import Launch
from tests.gpu.kernels import GPU
from tests.gpu.rows import Row, emit

Timed = tuple[str, Tile, list[Launch]]


def measure(_found: Mapping[str, float]) -> bool:
    for kind, tile, launches in _in_turn():
        try:
            ms = milliseconds(launches)
        except Exception as error:  # noqa: BLE001 - one that does not fit is no fault
            emit(Row(name=f"{kind}, {type(error).__name__}: {_told(tile)}", measured=0.0))
        else:
            emit(Row(name=f"{kind}: {_told(tile)}", measured=ms))
    return True


def _in_turn() -> Iterator[Timed]:
    (shape,) = shapes_named(["Llama-3-8B"])
    decode = (("decode, 64 at 2048", *one) for one in decode_launches(shape, GPU))
    prefill = (("prefill, 8192", *one) for one in prefill_launches(shape, GPU))
    return (one for one in chain.from_iterable(zip_longest(decode, prefill)) if one is not None)


def _told(tile: Tile) -> str:
    return f"{tile.rows} x {tile.keys}, {tile.warps} warps, {tile.stages} stages"

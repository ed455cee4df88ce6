"""How much a core remembers: the elements of every container that it can reach."""

from collections import deque
from collections.abc import Iterator
from enum import Enum

import msgspec
import numpy as np

from common.kv.pages import PagePool

BOUNDED = (
    *(".prefixes", ".snapshot", "._barred", ".foresight", "._foresight"),
    *("._pace", "._paces[]"),
)
CONTAINERS = (dict, list, set, tuple, frozenset, deque)


def footprint(core: object) -> dict[str, int]:
    """Elements by path, of those that hold any. Left out is what is bounded by other things than
    requests: a pool's cache, a gateway's copy of it, barred pairs, the last lengths of outputs,
    the last passes by their size; and deques with a bound of their own."""
    sizes: dict[str, int] = {}
    _walk(core, "", sizes, set())
    return sizes


def _walk(thing: object, path: str, sizes: dict[str, int], seen: set[int]) -> None:
    if id(thing) in seen or isinstance(thing, Enum | PagePool | np.ndarray | str | bytes):
        return
    if path.endswith(BOUNDED) or (isinstance(thing, deque) and thing.maxlen is not None):
        return
    seen.add(id(thing))
    if isinstance(thing, CONTAINERS):
        if thing:
            sizes[path] = sizes.get(path, 0) + len(thing)
        values = thing.values() if isinstance(thing, dict) else thing
        for value in values:
            _walk(value, f"{path}[]", sizes, seen)
    for name, value in _attributes(thing):
        _walk(value, f"{path}.{name}", sizes, seen)


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, msgspec.Struct) or not hasattr(thing, "__class__"):
        return
    if type(thing).__module__.split(".")[0] not in ("common", "prefill", "decode", "launch"):
        return
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(thing, name):
                yield name, getattr(thing, name)

"""What two processes must agree on to work together."""

import msgspec

from common.engine.identity import difference
from common.ids import Role
from common.messages import PROTOCOL, Hello, HelloRefused
from tests.unit.engine.hellos import LIMITS, MODEL, hello


def test_what_must_be_equal() -> None:
    d, p, g = hello("d", Role.DECODE), hello("p", Role.PREFILL), hello("g", Role.GATEWAY)

    def with_model(**changed: str) -> Hello:
        return msgspec.structs.replace(d, model=msgspec.structs.replace(MODEL, **changed))

    assert difference(d, p) is None
    assert difference(g, p) is None  # the first worker decides
    assert difference(p, g, None) is None
    exact = with_model(kernel_path="a")
    assert difference(exact, p) is None  # an unknown path is not compared
    assert difference(exact, with_model(kernel_path="b")) == HelloRefused(
        field="kernel_path", ours="a", theirs="b"
    )
    in_fp8 = with_model(kv_dtype="fp8_e4m3/bfloat16")
    assert difference(in_fp8, p) == HelloRefused(
        field="kv_dtype", ours="fp8_e4m3/bfloat16", theirs="bfloat16"
    )
    assert difference(in_fp8, with_model(kv_dtype="fp8_e4m3/float32")) is not None
    pages = msgspec.structs.replace(p, limits=msgspec.structs.replace(LIMITS, page_tokens=32))
    assert difference(d, pages) == HelloRefused(field="block_size", ours="16", theirs="32")
    newer = msgspec.structs.replace(p, protocol=99, model=None)
    assert difference(d, newer) == HelloRefused(field="protocol", ours=str(PROTOCOL), theirs="99")
    bare = msgspec.structs.replace(p, model=None)
    assert difference(g, bare) == HelloRefused(field="model", ours="any", theirs="none")
    partial = msgspec.structs.replace(MODEL, kv_dtype="", page_layout="")
    assert difference(g, p, partial) is None
    assert difference(g, with_model(fingerprint="e"), partial) is not None

"""Messages that decode, whatever they say: made from the types, as a receiver would decode them."""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from common.messages import AnyMessage

INTEGERS = (0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 50, -1, 2**31 - 1, 2**40, 2**63, 2**64 - 1)
FLOATS = (0.0, 0.0, 0.1, 1.0, 50.0, 1e6)
LONGEST = 4


class Maker:
    """Draws values of types. Texts are of those that are given: ids that mean something here."""

    def __init__(self, draw: Random, texts: Sequence[str]) -> None:
        self._draw = draw
        self._texts = texts

    def message(self, kinds: Sequence[type[AnyMessage]]) -> AnyMessage:
        """One of these kinds, as it comes out of a decoder."""
        while True:
            kind = self._draw.choice(kinds)
            data = msgspec.msgpack.encode(self.value(inspect.type_info(kind)))
            try:
                return msgspec.msgpack.decode(data, type=kind)
            except msgspec.ValidationError:  # out of bounds: no message
                continue

    def value(self, kind: inspect.Type) -> Any:  # noqa: ANN401  of that type
        draw = self._draw
        match kind:
            case inspect.StructType():
                return self._struct(kind)
            case inspect.VarTupleType(item_type=item):
                return [self.value(item) for _ in range(draw.randrange(LONGEST))]
            case inspect.TupleType(item_types=items):
                return [self.value(item) for item in items]
            case inspect.DictType():
                return {}
            case inspect.UnionType(types=types):
                return self.value(draw.choice(types))
            case inspect.EnumType(cls=cls):
                return draw.choice(list(cls))
            case _:
                return self._plain(kind)

    def _plain(self, kind: inspect.Type) -> Any:  # noqa: ANN401  of that type
        draw = self._draw
        match kind:
            case inspect.IntType():
                return draw.choice(INTEGERS)
            case inspect.FloatType():
                return draw.choice(FLOATS)
            case inspect.StrType():
                return draw.choice(self._texts)
            case inspect.BytesType():
                return draw.randbytes(16)
            case inspect.BoolType():
                return draw.random() < 0.5
            case inspect.NoneType():
                return None
            case _:
                raise AssertionError(kind)

    def _struct(self, kind: inspect.StructType) -> Any:  # noqa: ANN401  what is encoded as it
        values = {field.encode_name: self.value(field.type) for field in kind.fields}
        if kind.array_like:
            return list(values.values())
        return values if kind.tag is None else {str(kind.tag_field): kind.tag, **values}

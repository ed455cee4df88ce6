"""The configuration's fields as options: their names, and the check of one value.

Reads nothing and decides nothing: `launch/settings.py` reads, `common/config.py` rules.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import inspect

from common.sections import Section
from common.spellings import parse_bytes, parse_count, parse_cpus
from launch.other_servers import VALUES

ENV_PREFIX = "BATON_"
_NEAR = 0.75  # difflib's ratio; from there on it is a slip of the pen, not another word

Value = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Option:
    """One field of the configuration."""

    key: str  # dotted: "prefill.chunk_tokens"
    section: type[Section]  # the struct that declares it: a heading of --help
    annotation: Any
    kind: inspect.Type  # of a value that is given
    expected: str  # "an integer >= 1"
    description: str
    default: object

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.replace(".", "__").upper()

    @property
    def is_switch(self) -> bool:
        return isinstance(self.kind, inspect.BoolType)

    @property
    def is_list(self) -> bool:
        return isinstance(self.kind, inspect.VarTupleType)

    @property
    def is_secret(self) -> bool:
        """Its value is never shown."""
        return self.name in _SECRETS

    def from_text(self, text: str) -> Value:
        """The value that a flag or a variable spells. Raises ValueError with what was expected."""
        try:
            text.encode()  # what is no UTF-8 has no place in messages and logs
            value = text if self.name in _PARSERS else _from_text(self.kind, text)
        except ValueError:
            raise ValueError(self._must_be(text)) from None
        return self.check(value)

    def _must_be(self, given: object) -> str:
        why = VALUES.get((self.name, str(given)))
        return f"must be {self.expected}" + (f"; {why}" if why else "")

    @property
    def _parser(self) -> Callable[[str], Value]:
        """Of a text."""
        if self.is_list:
            return _texts
        plain = parse_count if isinstance(self.kind, inspect.IntType) else str
        return _PARSERS.get(self.name, plain)

    def check(self, value: object) -> Value:
        """`value` in the field's type. Raises ValueError with what was expected."""
        try:
            if isinstance(value, str):
                value = self._parser(value)
            return msgspec.convert(value, self.annotation)
        except ValueError:  # msgspec's own is one, too
            raise ValueError(self._must_be(value)) from None


def options_of(struct: type[Section], prefix: str = "") -> dict[str, Option]:
    """Every field of `struct` and of the sections in it, by dotted key."""
    options: dict[str, Option] = {}
    for field in msgspec.structs.fields(struct):
        key = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, Section):
            options |= options_of(field.type, f"{key}.")
        else:
            kind, description, expected = _described(field.type)
            options[key] = Option(
                key=key,
                section=_declaring(struct, field.name),
                annotation=field.type,
                kind=kind,
                expected=expected or _expected(kind),
                description=description,
                default=field.default,
            )
    return options


def hint(name: str, known: Iterable[str]) -> str:
    """ "; did you mean X?", X the known name spelt almost like `name`; "" where none is."""
    near = get_close_matches(name, list(known), n=1, cutoff=_NEAR)
    return f"; did you mean {near[0]}?" if near else ""


def _cpu_list(text: str) -> str:
    parse_cpus(text)
    return text


def _context(text: str) -> int | None:
    return None if text == "auto" else parse_count(text)


def _texts(text: str) -> tuple[str, ...]:
    """Of "a,b", or a JSON list, as vLLM takes it. Raises ValueError."""
    if text.startswith("["):
        return msgspec.json.decode(text, type=tuple[str, ...])
    return tuple(part.strip() for part in text.split(","))


_SECRETS = frozenset({"api_key"})
_PARSERS: dict[str, Callable[[str], Value]] = {
    "kv_cache_memory_bytes": parse_bytes,
    "kv_host_memory_bytes": parse_bytes,
    "cpus": _cpu_list,
    "max_model_len": _context,
}


def _from_text(kind: inspect.Type, text: str) -> Value:
    match kind:
        case inspect.BoolType():
            return _one_of({"true": True, "1": True, "false": False, "0": False}, text.lower())
        case inspect.FloatType():
            return float(text)
        case inspect.LiteralType(values):
            return _one_of({str(value): value for value in values if value is not None}, text)
        case _:
            return text


def _one_of(values: dict[str, Value], text: str) -> Value:
    if text not in values:
        raise ValueError(text)
    return values[text]


def _described(annotation: object) -> tuple[inspect.Type, str, str]:
    """The type of a value that is given, the field's description, the value's own (or "")."""
    info = inspect.type_info(annotation)
    description = _description(info)
    if isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        (info,) = (member for member in info.types if not isinstance(member, inspect.NoneType))
    if isinstance(info, inspect.Metadata):
        return info.type, description, _description(info)
    return info, description, ""


def _description(info: inspect.Type) -> str:
    schema = info.extra_json_schema if isinstance(info, inspect.Metadata) else None
    return str((schema or {}).get("description", ""))


def _expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values):
            return "one of " + ", ".join(str(value) for value in values)
        case inspect.IntType(ge=low, le=high):
            return "an integer" + _bounds(low, high)
        case inspect.FloatType(ge=low, le=high):
            return "a number" + _bounds(low, high)
        case inspect.VarTupleType():
            return "texts separated by commas, none of them empty"
        case _:
            return "text, and not empty"


def _bounds(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f" >= {low}" if high is None else f" from {low} to {high}"


def _declaring(struct: type[Section], name: str) -> type[Section]:
    return next(
        base for base in reversed(struct.__mro__) if name in vars(base).get("__annotations__", {})
    )

"""The packed layout: which tensors a model computes with, each made of rows of source tensors.

q, k and v are one matrix, and so are gate and up: one product instead of three or two. A row's
dot products are the same either way. What multiplies is packed for the kernels at hand, see
`common.kernels.matrix`; tied embeddings are looked up in what gives the logits, so that they exist
once. Change the layout: raise `LAYOUT_VERSION`, since processes of other versions must not share
it.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor

from common.errors import SetupError
from common.kernels.formats import WeightFormat, decode, encode_int8, has_unopposed_codes
from common.kernels.matrix import PACKED_LAYOUT, Matrix, PackedMatrix, blocks_shape, packs
from common.model.spec import ModelSpec
from common.model.weight_source import WeightSource

LAYOUT_VERSION = 3
ALIGN_BYTES = 64  # a cache line, and the widest vector register
_ENCODED = 1 << 21  # weights encoded at a time

Report = Callable[[str, int, int], None]
"""Called after each packed tensor: its name, bytes done, bytes in all."""


class Use(Enum):
    """What a pass does with a tensor."""

    VECTOR = auto()  # norms, biases
    TABLE = auto()  # embeddings that are only looked up
    MATRIX = auto()  # multiplies
    GATED = auto()  # multiplies as gate and up


class Packed(NamedTuple):
    """A packed tensor: the rows of `sources`, one below the other."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[tuple[str, int], ...]  # (Hugging Face's name, rows)
    use: Use = Use.VECTOR


def packed_layout(spec: ModelSpec) -> tuple[Packed, ...]:
    """Every tensor of the model, in the order in which a pass reads them."""
    hidden = spec.hidden_size
    embed = [("model.embed_tokens.weight", spec.vocab_size)]
    embed_use = Use.MATRIX if spec.tied_embeddings else Use.TABLE
    tensors = [_stack("embed", (hidden,), embed, embed_use)]
    for layer in range(spec.n_layers):
        tensors += _layer_layout(spec, layer)
    tensors.append(_stack("final_norm", (), [("model.norm.weight", hidden)]))
    if not spec.tied_embeddings:
        lm_head = [("lm_head.weight", spec.vocab_size)]
        tensors.append(_stack("lm_head", (hidden,), lm_head, Use.MATRIX))
    return tuple(tensors)


def _layer_layout(spec: ModelSpec, layer: int) -> list[Packed]:
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
    hidden, inner, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q_rows, kv_rows = spec.n_heads * dim, spec.n_kv_heads * dim
    qkv = [("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)]
    matrices = (  # name, columns, has a bias, prefix of the sources, (source, rows)
        ("qkv", hidden, spec.qkv_bias, "self_attn", qkv),
        ("o", q_rows, spec.o_bias, "self_attn", [("o_proj", hidden)]),
        ("gate_up", hidden, spec.mlp_bias, "mlp", [("gate_proj", inner), ("up_proj", inner)]),
        ("down", inner, spec.mlp_bias, "mlp", [("down_proj", hidden)]),
    )
    norms = [
        ("attn_norm", "input_layernorm", hidden),
        ("mlp_norm", "post_attention_layernorm", hidden),
    ]
    if spec.qk_norm:
        norms += [("q_norm", "self_attn.q_norm", dim), ("k_norm", "self_attn.k_norm", dim)]
    tensors = [
        _stack(f"{ours}.{name}", (), [(f"{theirs}.{source}.weight", size)])
        for name, source, size in norms
    ]
    for name, columns, has_bias, prefix, parts in matrices:
        matrix_use = Use.GATED if name == "gate_up" else Use.MATRIX
        for kind, tail, use in (("weight", (columns,), matrix_use), ("bias", (), Use.VECTOR)):
            if kind == "weight" or has_bias:
                sources = [(f"{theirs}.{prefix}.{source}.{kind}", rows) for source, rows in parts]
                tensors.append(_stack(f"{ours}.{name}.{kind}", tail, sources, use))
    return tensors


def _stack(
    name: str, tail: tuple[int, ...], sources: list[tuple[str, int]], use: Use = Use.VECTOR
) -> Packed:
    return Packed(name, (sum(rows for _, rows in sources), *tail), tuple(sources), use)


def layout_name(dtype: torch.dtype) -> str:
    """Processes may share packed weights of one dtype and formats where this is equal."""
    return f"{LAYOUT_VERSION}-{PACKED_LAYOUT if packs(dtype) else 'rows'}"


Formats = Mapping[str, WeightFormat]
"""Of packed tensors, by name; the others are plain."""


class Placed(NamedTuple):
    """A packed tensor's place in a buffer that holds them all."""

    packed: Packed
    format: WeightFormat
    shape: tuple[int, ...]  # in memory: of blocks, where a matrix is packed
    offset: int  # bytes; a multiple of ALIGN_BYTES
    n_bytes: int

    def is_packed(self, dtype: torch.dtype) -> bool:
        """Whether it lies in blocks. Where no kernel reads them, weights are decoded instead."""
        return _is_packed(self.packed.use, self.format, dtype)


def _is_packed(use: Use, weight_format: WeightFormat, dtype: torch.dtype) -> bool:
    if use is Use.VECTOR or not packs(dtype):
        return False
    return use is not Use.TABLE or weight_format is not WeightFormat.PLAIN


def place(
    layout: tuple[Packed, ...], dtype: torch.dtype, formats: Formats | None = None
) -> tuple[tuple[Placed, ...], int]:
    """Lay the tensors out one after the other. Also returns the bytes of all."""
    placed: list[Placed] = []
    at = 0
    for packed in layout:
        weight_format = (formats or {}).get(packed.name, WeightFormat.PLAIN)
        shape = packed.shape
        n_bytes = torch.Size(shape).numel() * dtype.itemsize
        if _is_packed(packed.use, weight_format, dtype):
            shape = blocks_shape(shape, dtype, weight_format, gated=packed.use is Use.GATED)
            n_bytes = torch.Size(shape).numel()
        placed.append(Placed(packed, weight_format, shape, at, n_bytes))
        at += -(-n_bytes // ALIGN_BYTES) * ALIGN_BYTES
    return tuple(placed), at


def check_source(layout: tuple[Packed, ...], source: WeightSource, *, tied: bool) -> None:
    """Raise `SetupError` unless the source holds exactly the tensors that the layout is made of.

    A tensor without a place would be an ingredient left out of the arithmetic.
    """
    shapes = source.shapes()
    if tied:
        shapes.pop("lm_head.weight", None)  # some checkpoints hold the tied matrix twice
    wanted = {name: (rows, *packed.shape[1:]) for packed in layout for name, rows in packed.sources}
    for problem, names in (
        ("missing", sorted(wanted.keys() - shapes.keys())),
        ("without a place in this architecture", sorted(shapes.keys() - wanted.keys())),
    ):
        if names:
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise SetupError(
                f"the weights do not fit the model's configuration: {problem}: {shown}"
            )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise SetupError(f"tensor {name} is {shapes[name]} where {shape} is needed")


def views(buffer: memoryview, placed: tuple[Placed, ...], dtype: torch.dtype) -> dict[str, Matrix]:
    """The packed tensors in a (writable) buffer, by name. They keep the buffer alive."""
    return {entry.packed.name: _view(buffer, entry, dtype) for entry in placed}


def _view(buffer: memoryview, entry: Placed, dtype: torch.dtype) -> Matrix:
    packed = entry.packed
    if not entry.is_packed(dtype):
        count = entry.n_bytes // dtype.itemsize
        flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=entry.offset)
        return flat.view(entry.shape)
    flat = torch.frombuffer(buffer, dtype=torch.uint8, count=entry.n_bytes, offset=entry.offset)
    return PackedMatrix.over(
        flat.view(entry.shape),
        packed.shape,
        dtype,
        entry.format,
        gated=packed.use is Use.GATED,
    )


def fill(
    tensors: dict[str, Matrix],
    placed: tuple[Placed, ...],
    source: WeightSource,
    report: Report | None = None,
) -> None:
    """Read every source tensor into its rows, which must be zero. Holds one source at a time."""
    of_bytes = sum(entry.n_bytes for entry in placed)
    done_bytes = 0
    for packed, weight_format, _, _, n_bytes in placed:
        first = 0
        matrix = tensors[packed.name]
        for name, n_rows in packed.sources:
            if weight_format is WeightFormat.PLAIN:
                _fill_rows(matrix, first, (n_rows, *packed.shape[1:]), name, source)
            else:
                _fill_encoded(matrix, first, name, weight_format, source)
            first += n_rows
        done_bytes += n_bytes
        if report is not None:
            report(packed.name, done_bytes, of_bytes)


def _fill_rows(
    matrix: Matrix, first: int, shape: tuple[int, ...], name: str, source: WeightSource
) -> None:
    if isinstance(matrix, Tensor):
        source.read_into(name, matrix[first : first + shape[0]])
    else:
        rows_RI = torch.empty(shape, dtype=matrix.dtype)
        source.read_into(name, rows_RI)
        matrix.write(rows_RI, first)


def _fill_encoded(
    matrix: Matrix, first: int, name: str, weight_format: WeightFormat, source: WeightSource
) -> None:
    """In pieces: what is read, encoded and decoded would be several times the tensor."""
    whole = _encodable(name, weight_format, source)
    step = max(1, _ENCODED // whole.shape[1])
    for at in range(0, len(whole), step):
        stored = whole[at : at + step]
        if weight_format is WeightFormat.INT8:
            stored = encode_int8(stored)
        if isinstance(matrix, Tensor):
            matrix[first + at : first + at + len(stored)] = decode(stored, weight_format)
        else:
            matrix.write(stored, first + at)


def _encodable(name: str, weight_format: WeightFormat, source: WeightSource) -> Tensor:
    """Rows to encode, float32, or those stored in that format already."""
    if weight_format is WeightFormat.INT8:
        rows_RI = torch.empty(source.shapes()[name], dtype=torch.float32)
        source.read_into(name, rows_RI)
        return rows_RI
    stored = source.stored_rows(name)
    if has_unopposed_codes(stored, weight_format):
        raise SetupError(
            f"tensor {name} has codes of -128, which cannot be kept: leave out --quantization gguf"
        )
    return stored

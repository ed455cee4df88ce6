"""Which format each packed tensor is kept in, by the flag `--quantization` and what the file has.

`int8` encodes whatever the file holds. `gguf` keeps groups as they are, never encoded anew; a
matrix of several tensors (q, k and v; gate and up) is kept if all of them have one format.
"""

from common.errors import SetupError
from common.kernels.formats import WeightFormat
from common.model.packing import Formats, Packed, Use
from common.model.weight_source import WeightSource
from common.values import Quantization

_KEPT = {"Q4_1": WeightFormat.Q4_1, "Q8_0": WeightFormat.Q8_0}
_FLOATS = ("F64", "F32", "F16", "BF16")
_KEEPS = f"--quantization gguf keeps {' and '.join(_KEPT)} tensors as a GGUF file stores them"
_REMEDY = "use --quantization int8 or none, or a file that was quantised to Q4_1 or Q8_0"


def choose_formats(
    layout: tuple[Packed, ...], source: WeightSource, quantization: Quantization
) -> Formats:
    """Raises SetupError where the file cannot be kept as it is."""
    matrices = [packed for packed in layout if packed.use is not Use.VECTOR]
    match quantization:
        case "none":
            return {}
        case "int8":
            return {packed.name: WeightFormat.INT8 for packed in matrices}
        case "gguf":
            return _stored_formats(matrices, source)


def _stored_formats(matrices: list[Packed], source: WeightSource) -> Formats:
    stored = {name: source.stored_format(name) for packed in matrices for name, _ in packed.sources}
    for name, stored_format in stored.items():
        if stored_format not in _KEPT and stored_format not in _FLOATS:
            raise SetupError(f"{_KEEPS}, and {name} is {stored_format}: {_REMEDY}")
    if not set(stored.values()) & set(_KEPT):
        found = ", ".join(sorted(set(stored.values())))
        raise SetupError(f"{_KEEPS}, and this model has none (its tensors are {found}): {_REMEDY}")
    formats: dict[str, WeightFormat] = {}
    for packed in matrices:
        of_parts = {stored[name] for name, _ in packed.sources}
        if len(of_parts) == 1 and (kept := _KEPT.get(of_parts.pop())) is not None:
            formats[packed.name] = kept
    return formats

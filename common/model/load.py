"""From a model's path to a model ready to run: spec, weights (shared or private), RoPE table."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from common.kernels import native_products
from common.kernels.matrix import Matrix, PackedMatrix
from common.model.device_weights import common_weights, device_weights
from common.model.fingerprint import file_identity, fingerprint
from common.model.gguf_weights import GgufSource
from common.model.llama import Llama
from common.model.packing import (
    Placed,
    Report,
    check_source,
    fill,
    layout_name,
    packed_layout,
    place,
)
from common.model.quantization import choose_formats
from common.model.rope import cos_sin_table
from common.model.safetensors_weights import SafetensorsSource
from common.model.shared_device_weights import Cuda, Layout, SharedDeviceWeights
from common.model.shared_weights import SharedWeights, private_weights
from common.model.spec import ModelSpec, check_max_model_len
from common.values import Quantization

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory. `close` hands its weights to no further process; they stay good here.

    `common_bytes`: of the one copy that processes share on a GPU, see `DeviceWeights`.
    """

    spec: ModelSpec
    model: Llama
    weights_bytes: int
    fingerprint: str
    shared: SharedWeights | SharedDeviceWeights | None
    common_bytes: int = 0

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()


def weights_bytes(model_path: Path, dtype: torch.dtype, quantization: Quantization) -> int:
    """Memory that the packed weights take. Raises as `load_model` does."""
    return _place(_open(model_path), dtype, quantization)[1]


def load_model(  # noqa: PLR0913  what is loaded, how, and where to, one by one
    model_path: Path,
    dtype: torch.dtype,
    run_dir: Path | None,
    max_model_len: int,
    report: Report | None = None,
    *,
    quantization: Quantization = "none",
    device: torch.device = CPU,
) -> LoadedModel:
    """Load for sequences of up to `max_model_len` tokens, with weights rounded to `dtype`, or kept
    as `quantization` says.

    With a `run_dir` all processes of this user that name it share one copy of the weights in
    memory, or on the `device`, which the first of them loads; None: a copy of one's own.
    `report` shows progress; while another process loads, it is called with that process's id and 0
    bytes.

    Raises `UnsupportedModel` for what cannot be run here, `SetupError` for what cannot be read.
    """
    source = _open(model_path)
    spec = source.spec
    check_max_model_len(spec, max_model_len)
    placed, n_bytes = _place(source, dtype, quantization)
    name = fingerprint(model_path)

    def filler(tensors: dict[str, Matrix]) -> None:
        fill(tensors, placed, source, report)

    def waiting(process_id: int) -> None:
        if report is not None:
            report(f"waiting for process {process_id}, which loads the weights", 0, n_bytes)

    shared, common_bytes = None, 0
    key = _sharing_key(name, file_identity(model_path), dtype, quantization)
    if device != CPU and run_dir is not None:
        layout, cuda = Layout(placed, n_bytes, dtype), Cuda(device)
        tensors, shared, common_bytes = common_weights(
            layout, filler, waiting, cuda, (run_dir, key)
        )
    elif device != CPU:
        tensors = device_weights(placed, n_bytes, dtype, filler, device)
    elif run_dir is None:
        tensors = private_weights(placed, n_bytes, dtype, filler)
    else:
        shared = SharedWeights(run_dir, key, placed, n_bytes, dtype)
        try:
            tensors = shared.open(filler, waiting)
        except BaseException:
            shared.close()
            raise
    model = Llama(spec, tensors, cos_sin_table(spec, max_model_len).to(device))
    if isinstance(model.lm_head_VH, PackedMatrix):
        native_products.tune(model.lm_head_VH)
    return LoadedModel(
        spec=spec,
        model=model,
        weights_bytes=n_bytes,
        fingerprint=name,
        shared=shared,
        common_bytes=common_bytes,
    )


def _open(model_path: Path) -> SafetensorsSource | GgufSource:
    return SafetensorsSource(model_path) if model_path.is_dir() else GgufSource(model_path)


def _place(
    source: SafetensorsSource | GgufSource, dtype: torch.dtype, quantization: Quantization
) -> tuple[tuple[Placed, ...], int]:
    layout = packed_layout(source.spec)
    check_source(layout, source, tied=source.spec.tied_embeddings)
    return place(layout, dtype, choose_formats(layout, source, quantization))


def _sharing_key(name: str, identity: str, dtype: torch.dtype, quantization: Quantization) -> str:
    """Short, since a Unix socket's path holds it; equal only where the packed bytes are equal."""
    parts = f"{name} {identity} {dtype} {quantization} {layout_name(dtype)}"
    return hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()

"""In float32 both attentions add in one order, as far as the compiler says it (law 3)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", "3.7", "as the other tests that compile")

SCRIPT = r"""
import json, re
import torch, triton
from triton.backends.compiler import GPUTarget
from bench.kernels_compile import paged, shapes_named, source
from common.kernels.triton import decode, prefill
from common.kernels.triton.configs import decode_tile, prefill_tile
from common.kernels.triton.rows import DeviceRows

META, (shape,) = torch.device("meta"), shapes_named(["SmolLM2"])
q = torch.empty((8, shape.n_heads, shape.head_dim), device=META)
ints = lambda *sizes: torch.empty(sizes, dtype=torch.int32, device=META)
rows = DeviceRows(single_I=ints(8), longest_keys=4096, tile_X2=ints(4, 2), start_B1=ints(9),
                  len_B=ints(8), tables_BM=ints(8, 272))
tiles = [of(torch.float32, 90, shape.head_dim) for of in (decode_tile, prefill_tile)]
launches = []
for layer in (paged(shape, "float32"), paged(shape, "fp8_e4m3")):
    launches += [decode.launches(q, layer, rows, tiles[0], q)[0],
                 prefill.launch(q, layer, rows, tiles[1], q)]
found = []
for launch in launches:
    made = triton.compile(source(launch), target=GPUTarget("cuda", 90, 32), options=launch.options)
    code = made.asm["ttgir"]
    layouts = dict(re.findall(r"(#\w+) = (#ttg\.\S+<.*>)", code))
    places = re.findall(r'"tt\.reduce".*?\}\) : \(tensor<(\S+), (#\w+)>', code, re.S)
    places += re.findall(r"= tt\.dot .* -> tensor<(\S+), (#\w+)>", code)
    found.append([(shape, layouts[name]) for shape, name in places])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_in_float32_both_attentions_reduce_in_one_layout(tmp_path: Path) -> None:
    """Which thread adds what, and which adds that up: of the largest score, of the weights, and of
    both products; with pages of float32, and of fp8. A process of its own: here kernels are
    interpreted."""
    command = ["env", "-u", "TRITON_INTERPRET", f"TRITON_CACHE_DIR={tmp_path}", sys.executable]
    done = subprocess.run([*command, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    decode, prefill, fp8_decode, fp8_prefill = json.loads(done.stdout)
    assert len(decode) == len(fp8_decode) == 4
    assert decode == prefill
    assert fp8_decode == fp8_prefill

"""Who processes say they are, in tests of how they meet."""

from common.ids import HostId, InstanceId, Role
from common.messages import PROTOCOL, Hello, Limits, ModelIdentity, Peer, RegionKey

MODEL = ModelIdentity(
    name="m", fingerprint="f", kv_dtype="bfloat16", page_layout="x16x", kernel_path=""
)
LIMITS = Limits(
    n_pages=8,
    page_tokens=16,
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_waiting=4,
)
HOST = HostId("here")


def hello(
    name: str, role: Role, endpoints: tuple[str, ...] = (), model: ModelIdentity = MODEL
) -> Hello:
    instance = InstanceId(name * 32)
    peer = Peer(instance=instance, role=role, host=HOST, endpoints=endpoints)
    if role is Role.GATEWAY:
        return Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
    pool = RegionKey(owner=instance, host=HOST, region=0, n_pages=8, page_bytes=4096, doors={})
    return Hello(protocol=PROTOCOL, peer=peer, model=model, limits=LIMITS, pool=pool)

"""A device to plan for, and a task of equal requests on some of it."""

import numpy as np

from bench.measures import Goodput
from bench.simulate.costs_file import CostsFile, DecodeFields, PrefillFields, TransferFields
from bench.simulate.plan_task import Task
from bench.simulate.plans import Request

DEVICE = CostsFile(
    model="m",
    device="cpu",
    dtype="float32",
    threads=1,
    page_tokens=16,
    page_bytes=368_640,
    n_pages=1000,
    prefill=PrefillFields(fixed_s=0.002, per_token_s=4e-4, per_pair_s=1e-8),
    decode=DecodeFields(fixed_s=0.007, per_context_token_s=1e-6, per_sequence_s=8e-4),
    transfer=TransferFields(latency_s=1e-3, bytes_per_s=1e10),
    request_s=0.002,
    token_s=0.001,
)


def task(n_in: int, n_out: int, slo: Goodput, *, n_devices: int = 4, n_requests: int = 200) -> Task:
    """Poisson arrivals; 90 % must keep the SLO."""
    at = np.cumsum(np.random.default_rng(0).exponential(1.0, n_requests)).tolist()
    return Task(
        requests=tuple(
            Request(at=one, prompt=tuple(range(k, k + n_in)), output_tokens=n_out)
            for k, one in enumerate(at)
        ),
        slo=slo,
        target=0.9,
        device=DEVICE,
        n_devices=n_devices,
    )

"""OpenVINO GenAI's continuous batching, in its own process and its own virtual environment.

    pip install openvino-genai        # not among Baton's dependencies
    python bench/peer_openvino.py MODEL_F16.gguf [--threads 2]

In process: no HTTP, no text. Prefix cache off, greedy, EOS ignored. Prints one JSON line with the
keys of `bench.engine`'s rows, milliseconds and tokens per second. Imports nothing of Baton.
"""

# pyright: basic
from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import numpy as np
import openvino as ov  # pyright: ignore[reportMissingImports]
import openvino_genai as genai  # pyright: ignore[reportMissingImports]

SOLO_PROMPTS = (64, 512, 2048)
SOLO_REQUESTS, SOLO_OUTPUT = 3, 64
PROMPT, OUTPUT = 256, 128
AT_ONCE = {8: 24, 32: 64}  # requests of each


class Peer:
    def __init__(self, path: str, n_threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 2
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": n_threads}
        self.pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self.random = random.Random(0)
        self.n_sent = 0

    def send(self, n_tokens: int, n_output: int) -> genai.GenerationHandle:
        config = genai.GenerationConfig()
        config.max_new_tokens = n_output
        config.ignore_eos = True
        ids = [[self.random.randrange(100, 30_000) for _ in range(n_tokens)]]
        self.n_sent += 1
        return self.pipeline.add_request(self.n_sent, ov.Tensor(np.array(ids, np.int64)), config)

    def solo(self, n_tokens: int) -> tuple[float, float]:
        """TTFT and TPOT, seconds."""
        began = time.perf_counter()
        handle = self.send(n_tokens, SOLO_OUTPUT)
        times: list[float] = []
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            if handle.can_read():
                handle.read()
                times.append(time.perf_counter())
        return times[0] - began, (times[-1] - times[0]) / (len(times) - 1)

    def at_once(self, n: int, n_requests: int) -> dict[str, float]:
        live = [[self.send(PROMPT, OUTPUT)] for _ in range(n)]  # handle, then times of tokens
        n_left = n_requests - n
        gaps: list[float] = []
        began = time.perf_counter()
        while live:
            self.pipeline.step()
            now = time.perf_counter()
            for stream in list(live):
                if not stream[0].can_read():
                    continue
                stream[0].read()
                stream.append(now)
                if len(stream) > 2:
                    gaps.append(stream[-1] - stream[-2])
                if len(stream) == 1 + OUTPUT:
                    live.remove(stream)
                    if n_left:
                        n_left -= 1
                        live.append([self.send(PROMPT, OUTPUT)])
        took = time.perf_counter() - began
        return {
            "tokens_per_s": n_requests * OUTPUT / took,
            "p99_itl_ms": 1e3 * float(np.percentile(gaps, 99)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    peer = Peer(options.model, options.threads)
    peer.solo(64)
    result: dict[str, float] = {}
    for n_tokens in SOLO_PROMPTS:
        times = [peer.solo(n_tokens) for _ in range(SOLO_REQUESTS)]
        result[f"ttft_{n_tokens}_ms"] = 1e3 * statistics.median(ttft for ttft, _ in times)
        result[f"tpot_{n_tokens}_ms"] = 1e3 * statistics.median(tpot for _, tpot in times)
    for n, n_requests in AT_ONCE.items():
        for name, value in peer.at_once(n, n_requests).items():
            result[f"{name}_{n}"] = value
    print(json.dumps(result))


if __name__ == "__main__":
    main()

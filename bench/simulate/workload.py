"""Requests that resemble each other, as those of many clients do."""

from dataclasses import replace
from random import Random

from bench.simulate.model import PLAIN, Wants, generate
from bench.simulate.shape import Shape
from launch.gateway.transfers import Generate


def workload(
    seed: int, shape: Shape, n: int, *, wants: Wants = PLAIN, most_outputs: int = 20
) -> list[Generate]:
    """Prompts that share prefixes, of one token up to half a pool; so many tokens of output, up to
    half a pool too.

    `wants`: what some of them have.
    """
    draw = Random(seed)
    longest = shape.max_model_len // 2
    stems = [[draw.randrange(1000) for _ in range(longest)] for _ in range(3)]
    requests: list[Generate] = []
    for i in range(n):
        stem = draw.choice(stems)[: draw.randrange(1, longest)]
        tail = [draw.randrange(1000) for _ in range(draw.choice((0, 1, 5)))]
        request = generate(
            f"r{i}",
            (stem + tail)[: longest - 1],
            draw.randrange(1, min(most_outputs, longest)),
            n=draw.choice((1, 1, 1, 3, 8)),
            wants=wants & Wants(draw.randrange(8)),
        )
        requests.append(replace(request, salt=draw.choice(("", "", "other"))))
    return requests


def full_house(seed: int, shape: Shape, n: int) -> list[Generate]:
    """Prompts around whole pages, up to ones that fill the smaller pool."""
    draw = Random(seed)
    requests: list[Generate] = []
    most = shape.max_model_len
    for i in range(n):
        n_pages = draw.choice((1, 2, most // shape.page_tokens))
        n_prompt = n_pages * shape.page_tokens + draw.choice((-1, 0, 1))
        n_prompt = max(1, min(n_prompt, most - 1))
        first = draw.randrange(3)
        prompt = [first] * n_prompt
        max_tokens = draw.randrange(1, 1 + min(10, most - n_prompt))
        requests.append(generate(f"r{i}", prompt, max_tokens, n=draw.choice((1, 1, 2, 8))))
    return requests

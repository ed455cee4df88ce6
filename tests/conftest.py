"""What all tests share: the default model's file, and the rule for tests that need a GPU."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from launch.fetch import DEFAULT_MODEL, fetch
from launch.settings import cache_dir, load_serve

_HERE = Path(__file__).parent
_WITH_SERVERS = ("system", "clients", "browser")

os.environ.setdefault("TRITON_INTERPRET", "1")  # read once, when Triton is first imported


# A machine at work may stand still for longer than any deadline of one example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The .gguf file of the default model, downloaded once into the user's cache directory."""
    return fetch(DEFAULT_MODEL, cache_dir=cache_dir(load_serve([], os.environ)))


@pytest.hookimpl(tryfirst=True)  # before xdist's, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _group(items)
    _skip_without_gpu(items)


def _group(items: list[pytest.Item]) -> None:
    """Of what is run at once: tests that start servers share them, and the cores; so they follow
    each other. The others of one file stay together, for what its fixtures cost."""
    for item in items:
        part = item.path.relative_to(_HERE)
        group = "servers" if part.parts[0] in _WITH_SERVERS else str(part)
        item.add_marker(pytest.mark.xdist_group(group))


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none; others never import torch for this."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))

"""What all tests share: the default model's file, and the rule for tests that need a GPU."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from launch.fetch import DEFAULT_MODEL, fetch
from launch.settings import cache_dir, load_serve

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.scheduling import Together

os.environ.setdefault("TRITON_INTERPRET", "1")  # read once, when Triton is first imported


# A machine at work may stand still for longer than any deadline of one example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The .gguf file of the default model, downloaded once into the user's cache directory."""
    return fetch(DEFAULT_MODEL, cache_dir=cache_dir(load_serve([], os.environ)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Together":
    """Where tests are run at once."""
    from tests.scheduling import Together

    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none; others never import torch for this."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))

"""Which PyTorch is installed, and what is said before much is fetched."""

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

HOME = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "install_torch", HOME / "scripts" / "install_torch.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def files_served(directory: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(directory))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_it_is_the_torch_that_the_project_declares(install: ModuleType) -> None:
    requirement = Requirement(install.torch_requirement(HOME / "pyproject.toml"))
    assert requirement.name == "torch"
    assert requirement.specifier.contains("2.13.0+cpu")
    assert not requirement.specifier.contains("2.10.0")


@pytest.mark.parametrize(
    "name", ["proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/wsl/lib/libcuda.so.1"]
)
def test_a_driver_is_known_by_what_it_leaves(
    install: ModuleType, name: str, tmp_path: Path
) -> None:
    assert not install.has_driver(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    assert install.has_driver(tmp_path)


def test_an_index_answers_if_it_has_torch(install: ModuleType, tmp_path: Path) -> None:
    with files_served(tmp_path) as url:
        assert not install.answers(url, 2.0)
        (tmp_path / "torch").mkdir()
        assert install.answers(url, 2.0)
    assert not install.answers(url, 2.0)
    assert not install.answers("no url", 2.0)


def test_what_lies_here_is_not_fetched(install: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "torch.whl").write_bytes(bytes(1000))
    with files_served(tmp_path) as url:
        report = {
            "install": [
                {"download_info": {"url": f"{url}/torch.whl"}},
                {"download_info": {"url": f"{url}/gone.whl"}},
                {"download_info": {"url": "file:///here/sympy.whl"}},
            ]
        }
        assert install.sizes_of(install.urls_of(report)) == {"torch.whl": 1000, "gone.whl": 0}


def test_how_much_it_is_and_what_would_be_less(install: ModuleType) -> None:
    sizes = {"torch.whl": 900_000_000, "cudnn.whl": 600_000_000}
    text = install.told(sizes, has_driver=False)
    assert "2 files, 1,500 MB to fetch" in text
    assert "TORCH_INDEX" in text
    assert install.told(sizes, has_driver=True) == (
        "there is an NVIDIA driver, so PyTorch with CUDA: 2 files, 1,500 MB to fetch"
    )

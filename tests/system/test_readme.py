"""What README.md tells a newcomer to send is answered, at the address and model of a test."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import RunningServer

pytestmark = pytest.mark.slow
TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text()
ADDRESS, MODEL = "http://127.0.0.1:8000", "SmolLM2-135M-Instruct"
STATUS = "curl --silent --show-error --write-out '\\n%{http_code}' "


def blocks(language: str) -> list[str]:
    """Fenced ones."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


CURLS = [block for block in blocks("sh") if block.startswith("curl ")]
(PYTHON,) = blocks("python")


def aimed(example: str, server: RunningServer) -> str:
    assert ADDRESS in example
    assert MODEL in example
    return example.replace(ADDRESS, server.url).replace(MODEL, "smollm2")


def test_every_example_is_one_that_is_tried() -> None:
    """Here, or with all else that its block has (`test_docs_run`)."""
    others = re.sub(r"^<!-- run: .*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall("^curl ", others, re.MULTILINE)) == len(CURLS) > 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("example", CURLS, ids=lambda block: block.split()[1])
def test_an_example_with_curl(server: RunningServer, example: str) -> None:
    command = STATUS + aimed(example, server).removeprefix("curl ")
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    body, _, status = done.stdout.rpartition("\n")
    assert (done.returncode, status) == (0, "200"), done
    if '"stream": true' in example:
        *events, last, end = body.split("\n\n")
        assert (last, end) == ("data: [DONE]", ""), body
        assert all(json.loads(event.removeprefix("data: "))["choices"] for event in events), body
    else:
        assert json.loads(body)["usage"]["total_tokens"] > 0, body


def test_the_example_with_the_official_client(server: RunningServer) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", aimed(PYTHON, server)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done
    assert len(done.stdout.split()) > 20, done

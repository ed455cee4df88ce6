"""`baton status` and `baton check` beside a real server."""

import openai
import pytest

from launch.cli import main
from tests.servers import RunningServer
from tests.system.asking import MODEL


def test_status_shows_its_pools_and_the_last_request(
    server: RunningServer, client: openai.OpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = client.completions.create(model=MODEL, prompt="One", max_tokens=3)
    assert main(["status", "--url", server.url, "--requests", "1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{MODEL}  ready  up ")
    rows = {cells[0]: cells for line in lines if (cells := line.split())}
    assert rows["prefill"][1] == rows["decode"][1] == "1/1"
    assert rows["prefill-0"][1] == rows["decode-0"][1] == "up"
    assert rows["TTFT"][2] == "ms"
    (request,) = (cells for name, cells in rows.items() if name.startswith(answer.id))
    assert {"prefill-0", "decode-0"} <= set(request)


def test_check_tells_that_the_port_is_taken(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--port", str(server.port)]) == 1
    assert f"--port {server.port}: Address already in use" in capsys.readouterr().out

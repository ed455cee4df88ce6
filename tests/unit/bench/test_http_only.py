import json
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parents[3]
ENGINE = {"common", "prefill", "decode", "transfer", "launch", "torch", "transformers", "zmq"}


def test_the_client_imports_nothing_of_the_engine() -> None:
    code = (
        "import json, sys, bench.serve, bench.processes, bench.stub, bench.client_limit\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=HOME)
    modules = set(json.loads(shown.stdout))
    assert "aiohttp" in modules
    assert not modules & ENGINE

"""`llm`, told of the server in its extra-openai-models.yaml, by command line and by Python. Run
with its own venv's Python: URL KEY MODEL."""

# pyright: basic, reportMissingImports=false
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

URL, KEY, MODEL = sys.argv[1:]
YAML = f"""
- model_id: chat
  model_name: {MODEL}
  api_base: "{URL}"
  api_key_name: baton
  supports_tools: true
  supports_schema: true
- model_id: text
  model_name: {MODEL}
  api_base: "{URL}"
  api_key_name: baton
  completion: true
- model_id: missing
  model_name: other
  api_base: "{URL}"
  api_key_name: baton
"""
BRIEF = ("-o", "max_tokens", "8", "-o", "temperature", "0")


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name("llm")), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def said(*args: str) -> str:
    done = run(*args)
    assert done.returncode == 0, done
    return done.stdout


def by_command() -> None:
    whole = said("-m", "chat", "--no-stream", *BRIEF, "What is a relay race?")
    assert said("-m", "chat", *BRIEF, "What is a relay race?") == whole.strip() + "\n"
    assert said("-m", "text", *BRIEF, "Once upon a time").strip()
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
        }
    )
    told = said("-m", "chat", "--schema", schema, "-o", "temperature", "0", "Where?")
    assert json.loads(told)["city"] in ("Paris", "Rome"), told
    failed = run("-m", "missing", "a")
    assert failed.returncode == 1, failed
    assert "does not exist" in failed.stderr, failed
    failed = run("-m", "chat", "--key", "wrong", "a")
    assert failed.returncode == 1, failed
    assert "API key" in failed.stderr, failed


async def by_python() -> None:
    import llm  # reads where it keeps its files when it is imported

    whole = llm.get_model("chat").prompt("What is a relay race?", max_tokens=8, temperature=0)
    answer = llm.get_async_model("chat").prompt(
        "What is a relay race?", max_tokens=8, temperature=0
    )
    parts: list[Any] = [part async for part in answer]
    assert "".join(parts) == whole.text() != "", parts


with tempfile.TemporaryDirectory() as home:
    os.environ["LLM_USER_PATH"] = home  # noqa: TID251 - another program's, in a venv of its own
    Path(home, "extra-openai-models.yaml").write_text(YAML)
    said("keys", "set", "baton", "--value", KEY)
    by_command()
    asyncio.run(by_python())

"""Text to token ids and back, by a tokenizer's file or by the server under load.

Used before a load and after it, never while it runs. Imports nothing of the engine.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from bench import reasons
from bench.client import Outcome, Target
from bench.prompts import Tokenizer

_TIMEOUT_S = 60.0


class FileTokenizer:
    """A `tokenizer.json`, or a directory or a hub id that holds one."""

    def __init__(self, place: str) -> None:
        """Raises ValueError where there is none."""
        from tokenizers import Tokenizer

        path = Path(place)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            known = path.is_file()
            self._tokenizer = (
                Tokenizer.from_file(str(path)) if known else Tokenizer.from_pretrained(place)
            )
        except Exception as error:  # noqa: BLE001 (the library raises bare Exceptions)
            raise ValueError(f"--tokenizer {place}: {error}") from None

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class ServerTokenizer:
    """POST /tokenize and /detokenize, as vLLM has them."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def encode(self, text: str) -> list[int]:
        return self._post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def decode(self, ids: list[int]) -> str:
        return self._post("/detokenize", {"tokens": ids})["prompt"]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises ValueError where the server has no such path: the user must name a tokenizer."""
        target = self._target
        url = target.base_url + path
        data = json.dumps({"model": target.model, **body}).encode()
        request = Request(url, data, {"Content-Type": "application/json", **target.headers})
        try:
            with urlopen(request, timeout=_TIMEOUT_S, context=target.trust.context()) as got:
                return json.load(got)
        except (URLError, OSError, ValueError) as error:
            raise ValueError(f"{url}: {reasons.of(error)}; name one with --tokenizer") from None


def count_again(outcomes: Iterable[Outcome], tokenizer: Tokenizer) -> None:
    """By their texts, the answers whose tokens the server did not count."""
    for outcome in outcomes:
        if outcome.counted_by == "chunks" and outcome.text:
            outcome.output_tokens = len(tokenizer.encode(outcome.text))
            outcome.counted_by = "tokenizer"

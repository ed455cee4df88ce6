"""JSON files of a model directory, read with errors that name the file.

Must not know what is in them.
"""

from pathlib import Path
from typing import Any

import msgspec

from common.errors import SetupError

JsonObject = dict[str, Any]


def read_json(path: Path, default: JsonObject | None = None) -> JsonObject:
    """The object in the file, or `default` if there is no such file. Raises `SetupError`."""
    if default is not None and not path.is_file():
        return default
    try:
        return msgspec.json.decode(path.read_bytes(), type=JsonObject)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{path}: {error}") from error

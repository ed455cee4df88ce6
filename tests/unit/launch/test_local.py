"""What `serve` refuses before it looks at a model, or starts anything."""

from pathlib import Path

import pytest

from common.config import ServeConfig
from common.errors import SetupError
from launch.local import serve


def test_files_and_addresses_that_cannot_be_used(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    for config, flag in (
        (ServeConfig(chat_template=missing), "--chat-template"),
        (ServeConfig(chat_template=str(tmp_path)), "--chat-template"),
        (ServeConfig(api_key_file=missing), "--api-key-file"),
        (ServeConfig(otlp_traces_endpoint="nonsense"), "--otlp-traces-endpoint"),
    ):
        with pytest.raises(SetupError, match=f"^{flag} "):
            serve(config, {})

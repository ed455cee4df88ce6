"""Log lines for people (key=value, one an event) and the request log for programs (JSON lines).

A value from outside can neither break a line nor forge one. Must not decide what is logged.
"""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TextIO

import msgspec

from common.errors import SetupError
from common.ids import InstanceId, Role, TransferId
from common.values import LogLevel

Value = int | float | str | None

_FIRST = ("request", "transfer", "attempt")
_MAX_VALUE_CHARS = 2000
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+,@%*()[]<>")
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")

_log = logging.getLogger(__name__)


def line(event: str, /, **fields: Value) -> str:
    """`transfer=t1 attempt=0 event=queued tokens=12`: ids first; None is left out."""
    ids = {name: fields.pop(name) for name in _FIRST if name in fields}
    pairs = {**ids, "event": event, **fields}
    return " ".join(f"{name}={_text(value)}" for name, value in pairs.items() if value is not None)


def set_up_logging(level: LogLevel, process: str, stream: TextIO | None = None) -> None:
    """All loggers of this process write lines to `stream` (stderr), `process` named in each.

    `process`: "decode-0/3f2a9c1d". Replaces what was set up before.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_LineFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _LineFormatter(logging.Formatter):
    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, process: str) -> None:
        super().__init__(f"time=%(asctime)s level=%(level)s process={process} %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        first, *rest = super().format(record).splitlines() or [""]
        return "\n".join([_visible(first), *(f"  | {_visible(text)}" for text in rest)])


def _visible(text: str) -> str:
    """What others wrote (a traceback may quote a client) cannot steer a terminal."""
    return _NOT_ASCII.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) > _MAX_VALUE_CHARS:
        text = f"{text[:_MAX_VALUE_CHARS]}... ({len(text)} characters)"
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)


class RequestLog:
    """One JSON line per event of a request's life. Many processes may append to one file.

    A line is `{"t": unix seconds, "mono": this host's monotonic seconds, "event", "transfer",
    "attempt", "role", "instance", ...fields}`. With no path it writes nothing.
    """

    def __init__(self, path: str | None, instance: InstanceId, role: Role) -> None:
        """`path`: what --request-log says. Raises SetupError where it cannot be appended to."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._fd = None if path is None else os.open(path, flags, 0o644)
        except OSError as error:
            raise SetupError(f"--request-log {path}: {error.strerror}") from error
        self._who: dict[str, Value] = {"role": role.value, "instance": instance}
        self._encoder = msgspec.json.Encoder()
        self.lost_lines = 0  # the disk was full, say

    def write(
        self, event: str, transfer: TransferId, attempt: int, fields: Mapping[str, Value]
    ) -> None:
        """One line, in one write: lines of several processes do not mix. Never raises OSError."""
        if self._fd is None:
            return
        entry: dict[str, Value] = {
            "t": time.time(),
            "mono": time.monotonic(),
            "event": event,
            "transfer": transfer,
            "attempt": attempt,
            **self._who,
            **fields,
        }
        data = self._encoder.encode(entry) + b"\n"
        try:
            whole = os.write(self._fd, data) == len(data)
        except OSError:
            whole = False
        if not whole:
            self.lost_lines += 1
            if self.lost_lines == 1:
                _log.error(line("request_log_incomplete"))

    def close(self) -> None:
        """Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

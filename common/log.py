"""Log lines, one an event (key=value for people, or JSON), and the request log for programs.

A value from outside can neither break a line nor forge one. Must not decide what is logged.
"""

import errno
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

import msgspec

from common.errors import SetupError
from common.ids import InstanceId, Role, TransferId
from common.values import LogFormat, LogLevel

Value = int | float | str | None  # bool is an int
Told = Value | Mapping[str, Any]
"""What a line tells: a value, or an object of JSON."""

_TIME, _MORE = b"time=", b"  | "  # what a line for people begins with, and those after it
_FIRST = ("request", "transfer", "attempt")
_ENDINGS = frozenset(("finished", "failed", "aborted"))
_MAX_VALUE_CHARS = 2000
_LOOKS, _LOOK_S = 3, 0.005  # at a file that somebody may be writing to
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+,@%*()[]<>")
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")

_log = logging.getLogger(__name__)


class Line(str):
    """An event as text; a formatter for programs takes its fields."""

    fields: Mapping[str, Told]


def line(event: str, /, **fields: Told) -> Line:
    """`transfer=t1 attempt=0 event=queued tokens=12`: ids first; None is left out."""
    ids = {name: fields.pop(name) for name in _FIRST if name in fields}
    pairs = {**ids, "event": event, **fields}
    told = {name: value for name, value in pairs.items() if value is not None}
    made = Line(" ".join(f"{name}={_text(value)}" for name, value in told.items()))
    made.fields = told
    return made


def field_of(text: str, event: str, name: str) -> str | None:
    """Of a line that was logged in either form: the text of a field; None: another event's line,
    or one without it."""
    with suppress(ValueError):
        if text.startswith("{"):
            told = msgspec.json.decode(text, type=dict[str, Any])
            if told.get("event") != event or name not in told:
                return None
            value = told[name]
            is_json = isinstance(value, bool | dict)
            return msgspec.json.encode(value).decode() if is_json else str(value)
    _, found, rest = text.partition(f" event={event} ")
    pattern = rf'(?:^| ){name}=("(?:[^"\\]|\\.)*"|\S*)'
    match = re.search(pattern, rest) if found else None
    if match is None:
        return None
    return str(json.loads(match[1])) if match[1].startswith('"') else match[1]


def set_up_logging(
    level: LogLevel, process: str, stream: TextIO | None = None, *, log_format: LogFormat = "text"
) -> None:
    """All loggers of this process write lines to `stream` (stderr), `process` named in each.

    `process`: "decode-0/3f2a9c1d". Replaces what was set up before.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    formatter = _LineFormatter if log_format == "text" else _JsonFormatter
    handler.setFormatter(formatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_what_python_says() -> None:
    """Warnings, and errors that nobody has caught, are lines of this process's log as all else."""
    logging.raiseExceptions = False  # a log that cannot be written is not told of in another form
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda told: _uncaught(told.exc_type, told.exc_value, told.exc_traceback)
    sys.unraisablehook = lambda told: _uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def _uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if not issubclass(kind, SystemExit):  # of a thread
        _log.critical(line("uncaught"), exc_info=(kind, error or kind(), trace))


def logs_json() -> bool:
    """This process has been set up to."""
    return any(isinstance(one.formatter, _JsonFormatter) for one in logging.getLogger().handlers)


def is_own_line(text: bytes) -> bool:
    """It has the form of this process's log: a formatter of ours made it, here or elsewhere."""
    return text.startswith(b"{" if logs_json() else (_TIME, _MORE))


class _LineFormatter(logging.Formatter):
    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, process: str) -> None:
        super().__init__(
            f"{_TIME.decode()}%(asctime)s level=%(level)s process={process} %(message)s"
        )

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        first, *rest = super().format(record).splitlines() or [""]
        return "\n".join([_visible(first), *(f"{_MORE.decode()}{_visible(text)}" for text in rest)])


class _JsonFormatter(_LineFormatter):
    """One object a line, in ASCII: {"time", "level", "process", "event", ...fields}; "message" in
    place of an event where another's library speaks; "traceback" where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        said = (
            record.msg.fields if isinstance(record.msg, Line) else {"message": record.getMessage()}
        )
        entry: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "process": self._process,
            **{name: _json_value(value) for name, value in said.items()},
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _visible(text: str) -> str:
    """What others wrote (a traceback may quote a client) cannot steer a terminal."""
    return _NOT_ASCII.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _text(value: Told) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    is_json = isinstance(value, bool | Mapping)
    text = _shortened(msgspec.json.encode(value).decode() if is_json else str(value))
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)


def _json_value(value: object) -> object:
    """Any JSON, with every text of it cut short."""
    if isinstance(value, str):
        return _shortened(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return {name: _json_value(one) for name, one in members.items()}
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in cast("list[object]", value)]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _shortened(text: str) -> str:
    if len(text) <= _MAX_VALUE_CHARS:
        return text
    return f"{text[:_MAX_VALUE_CHARS]}... ({len(text)} characters)"


def _to_append(path: str, flags: int = os.O_CREAT) -> int:
    """A descriptor. Whoever reads a pipe slowly, or not at all, is not waited for. Raises
    SetupError."""
    try:
        return os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o644
        )
    except OSError as error:
        nobody = error.errno == errno.ENXIO
        why = "a pipe that nobody reads" if nobody else error.strerror
        raise SetupError(f"--request-log {path}: {why}") from error


def check_request_log(path: str) -> None:
    """Raises SetupError where it cannot be written, as far as that is known without making it."""
    if os.path.lexists(path):
        os.close(_to_append(path, 0))
    elif not os.access(Path(path).parent, os.W_OK | os.X_OK):
        raise SetupError(f"--request-log {path}: no file can be made there")


class RequestLog:
    """One JSON line per event of a request's life. Many processes may append to one file.

    Each is a line of the usual log, too: at `info` how it ended at the gateway, the rest at
    `debug`.

    A line is `{"t": unix seconds, "mono": this host's monotonic seconds, "event", "transfer",
    "attempt", "role", "instance", ...fields}`. With no path it writes nothing.
    """

    def __init__(self, path: str | None, instance: InstanceId, role: Role) -> None:
        """`path`: what --request-log says. Raises SetupError where it cannot be appended to."""
        self._fd = None if path is None else _to_append(path)
        self._reader: int | None = None
        if path is not None and Path(path).is_file():  # no pipe, whose end is not to be read
            with suppress(OSError):  # to be written only
                self._reader = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._is_gateway = role is Role.GATEWAY
        self._who: dict[str, Value] = {"role": role.value, "instance": instance}
        self._encoder = msgspec.json.Encoder()
        self._may_be_cut = self._was_left_cut()
        self.lost_lines = 0  # the disk was full, say

    def write(
        self, event: str, transfer: TransferId, attempt: int, fields: Mapping[str, Value]
    ) -> None:
        """One line, in one write: lines of several processes do not mix. It begins a line, too,
        where a full disk has cut the last: that is looked for at first, and after a failure of
        one's own, since whoever looks beside a writer sees halves, too. Never raises OSError."""
        level = logging.INFO if self._is_gateway and event in _ENDINGS else logging.DEBUG
        if _log.isEnabledFor(level):
            _log.log(level, line(event, transfer=transfer, attempt=attempt, **fields))
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
        if self._may_be_cut and self._cut_at() is not None:
            data = b"\n" + data
        n_written = 0
        with suppress(OSError):
            n_written = os.write(self._fd, data)
        whole = n_written == len(data)
        self._may_be_cut = not whole
        if not whole:
            self.lost_lines += 1
            if self.lost_lines == 1:
                _log.error(line("request_log_incomplete"))

    def _was_left_cut(self) -> bool:
        """A process that writes just now is no full disk: its line is whole at the next look."""
        cut_at = self._cut_at()
        for _ in range(_LOOKS):
            if cut_at is None:
                return False
            time.sleep(_LOOK_S)
            before, cut_at = cut_at, self._cut_at()
            if before != cut_at:
                return False
        return True

    def _cut_at(self) -> int | None:
        """The file's length, where its last line has no end."""
        if self._reader is None:
            return None
        with suppress(OSError):
            n_bytes = os.fstat(self._reader).st_size
            if n_bytes > 0 and os.pread(self._reader, 1, n_bytes - 1) != b"\n":
                return n_bytes
        return None

    def close(self) -> None:
        """Idempotent."""
        for fd in (self._fd, self._reader):
            if fd is not None:
                os.close(fd)
        self._fd = self._reader = None

"""What processes that were started here write to stderr becomes this process's, line by line.

Their own log lines go on as they are. What others write there (a library, the runtime when it dies)
is logged, so that every line has the one form. Must not know what lines mean.
"""

import logging
import sys
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby

from common.log import is_own_line, line

READ_BYTES = 65536

_log = logging.getLogger(__name__)


async def pass_on(
    process: Process, name: str, lines: deque[str], on_data: Callable[[], None]
) -> None:
    """To its end. The last of what `name` says is kept in `lines`; `on_data` hears that there is
    some."""
    assert process.stderr is not None
    lines.clear()
    rest = b""
    while data := await process.stderr.read(READ_BYTES):
        on_data()
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > READ_BYTES:
            whole, rest = [*whole, rest], b""
        _tell(name, whole, lines)
    if rest:
        _tell(name, [rest], lines)


def _tell(name: str, whole: list[bytes], lines: deque[str]) -> None:
    lines.extend(text.decode(errors="replace") for text in whole)
    for is_own, group in groupby(whole, is_own_line):
        if is_own:
            with suppress(OSError):  # nobody reads ours any more, or its disk is full
                sys.stderr.buffer.write(b"\n".join([*group, b""]))
                sys.stderr.buffer.flush()
            continue
        for text in group:
            if text.strip():
                _log.error(line("said", worker=name, text=text.decode(errors="replace")))

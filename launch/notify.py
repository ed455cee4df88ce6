"""What systemd is told of a service of `Type=notify`: the datagrams of sd_notify(3).

Says nothing where nobody listens, and never fails: a service manager that is gone stops no server.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

_US = 1e6
_SHORTEST_S = 0.001  # between two beats


class Notifier:
    """`tell` what has come about; `beat` while the loop runs."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` names the socket, and how often it wants to be told that we live."""
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "")
        wanted_us = int(usec) if meant and usec.isascii() and usec.isdecimal() else 0
        self.beat_s = max(_SHORTEST_S, wanted_us / _US / 2) if wanted_us else None
        """Seconds between two beats: half of what is asked for. None, or 0 asked for: none are."""

    def ready(self, status: str) -> None:
        """It serves, after a start or a reload."""
        self._tell("READY=1", _status(status))

    def reloading(self, status: str) -> None:
        """It changes itself, and serves on. To be followed by `ready`."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell("RELOADING=1", f"MONOTONIC_USEC={usec}", _status(status))

    def stopping(self) -> None:
        """Its end has begun."""
        self._tell("STOPPING=1")

    async def beat(self) -> None:
        """As long as this loop turns. Returns at once where nobody asks for it."""
        while self.beat_s is not None and self._address:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.beat_s)

    def _tell(self, *lines: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(0)
                sender.sendto("\n".join(lines).encode(errors="replace"), self._address)


def _status(text: str) -> str:
    """Its further lines would be taken for states."""
    return f"STATUS={' '.join(text.splitlines())}"


def has_terminal() -> bool:
    """This process has a terminal of its own (a controlling one), which lives."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

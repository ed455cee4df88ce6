"""Why something cannot be done, in words that name the flag, its value and what would help.

Says so before anything is measured: what a measurement's result is to be written to, what a
workload is read from, who is to answer. Must not write. Imports nothing of the engine.
"""

import importlib.util
import os
import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from urllib.error import URLError

import aiohttp

from bench.misdialled import misdialled, no_http

_NUMBER = re.compile(r"\d[\d.,]*")
_PICTURES = (".png", ".svg", ".pdf")


def must_be_writable(flag: str, path: Path) -> None:
    """A file, with folders that may still be missing. Raises ValueError."""
    there = next(p for p in (path, *path.absolute().parents) if os.access(p, os.F_OK))
    if there == path:
        fault = f"{path} is a folder" if path.is_dir() else _forbidden(path, os.W_OK)
    elif not there.is_dir():
        fault = f"{there} is no folder"
    else:
        fault = _forbidden(there, os.W_OK | os.X_OK)
    if fault is not None:
        raise ValueError(f"{flag} {path}: cannot be written: {fault}")


def must_be_readable(flag: str, path: Path) -> None:
    """A file. Raises ValueError."""
    if not os.access(path, os.F_OK):  # unlike Path.exists, never raises
        fault: str | None = "there is no such file"
    elif path.is_dir():
        fault = "it is a folder"
    else:
        fault = _forbidden(path, os.R_OK)
    if fault is not None:
        raise ValueError(f"{flag} {path}: {fault}")


def must_be_a_writable_folder(flag: str, path: Path) -> None:
    """Or one that can be made. Raises ValueError."""
    if os.access(path, os.F_OK) and not path.is_dir():
        raise ValueError(f"{flag} {path}: it is no folder")
    must_be_writable(flag, path / "result")


def must_be_drawable(flag: str, path: Path) -> None:
    """A picture: what draws is installed, too. Raises ValueError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{flag}: drawing needs pip install 'baton-serving[bench]'")
    if path.suffix not in _PICTURES:
        raise ValueError(f"{flag} {path}: must end in {', '.join(_PICTURES)}")
    must_be_writable(flag, path)


def _forbidden(path: Path, access: int) -> str | None:
    return None if os.access(path, access) else f"no permission for {path}"


def of(error: BaseException) -> str:
    """What a library raised, without its addresses and numbers."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return of(error.os_error)
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        return of(error.reason)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):  # whose errno is none of the system's
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{os.strerror(error.errno)}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def no_server(url: str, flag: str, error: BaseException) -> str:
    """`flag`: what names another. `url` may have a name and = before it, as that flag takes it."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        cause = ConnectionResetError(of(cause))
    told = misdialled(url, flag, cause)
    if told is None and isinstance(cause, aiohttp.ClientResponseError):
        told = no_http(url, flag)
    if told is None and isinstance(error, aiohttp.ClientConnectorError):
        told = (
            f"{url}: no server answers there ({of(error)}): start one with `baton serve`, or name "
            f"another with {flag}"
        )
    return told or f"{url}: {of(error)}"


def grouped(faults: Iterable[str]) -> list[tuple[str, int]]:
    """(the first, how many are like it): those that differ in numbers alone are one."""
    found: dict[str, tuple[str, int]] = {}
    for fault in faults:
        alike = _NUMBER.sub("0", fault)
        first, n = found.get(alike, (fault, 0))
        found[alike] = (first, n + 1)
    return sorted(found.values(), key=lambda pair: -pair[1])

"""What a server promises about who may use it: keys read, certificates tried, addresses judged.

Asked before anything is started, and refused in one line. Must neither listen nor log.
"""

import ctypes
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec

from common.curve import read_key
from common.errors import SetupError
from common.sections import HttpOptions, ProcessOptions
from common.values import ApiKey
from launch.settings import OPTIONS, SECRET_VARIABLES

_STAT = Path("/proc/self/stat")
_ARG_START, _ARG_END = 45, 46  # of the fields after the command's name: proc(5)'s 48 and 49
_KEY_FLAG = OPTIONS["api_key"].flag.encode()


# --- keys ----------------------------------------------------------------------------------------


def api_keys(options: HttpOptions) -> tuple[str, ...]:
    """All that a request may bear one of; empty: anybody may ask. Raises SetupError."""
    keys = list(options.api_key or ())
    if options.api_key_file is not None:
        keys += _keys_of(options.api_key_file)
    return tuple(dict.fromkeys(keys))


def _keys_of(path: str) -> list[str]:
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise SetupError(f"--api-key-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"--api-key-file {path}: not a file of text") from error
    keys: list[str] = []
    for number, text in enumerate(lines, 1):
        key = text.strip()
        if not key or key.startswith("#"):
            continue
        try:
            keys.append(msgspec.convert(key, ApiKey))
        except ValueError:
            raise SetupError(
                f"--api-key-file {path}: line {number} is no key: printable ASCII without spaces "
                "and commas"
            ) from None
    if not keys:
        raise SetupError(f"--api-key-file {path}: there is no key in it: write one a line")
    return keys


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """What other processes may be given."""
    return {name: value for name, value in environ.items() if name not in SECRET_VARIABLES}


def hide_arguments() -> bool:
    """Overwrite keys where the system shows this process's arguments. False: there were none."""
    try:
        fields = _STAT.read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    except (OSError, IndexError, ValueError):
        return False
    if not 0 < start < end:
        return False
    area = (ctypes.c_char * (end - start)).from_address(start)
    shown = area.raw
    hidden = without_keys(shown)
    if hidden == shown:
        return False
    area.raw = hidden
    return True


def without_keys(arguments: bytes) -> bytes:
    """A command line, a NUL after each argument, with `x` for every character of a key."""
    after_flag = False
    parts: list[bytes] = []
    for argument in arguments.split(b"\0"):
        name, equals, value = argument.partition(b"=")
        if argument.startswith(b"--"):
            after_flag = name.replace(b"_", b"-") == _KEY_FLAG
            told = b"x" * len(value) if after_flag else value
            parts.append(name + equals + told)
        else:
            parts.append(b"x" * len(argument) if after_flag else argument)
    return b"\0".join(parts)


# --- addresses and certificates ------------------------------------------------------------------


def check_control(options: ProcessOptions) -> None:
    """Raises SetupError where strangers could join, or the secret that keeps them out is none."""
    if options.control_key_file is not None:
        read_key(options.control_key_file)
    elif not is_loopback(options.control_host):
        raise SetupError(
            f"--control-host {options.control_host}: whoever reaches it could join, and be sent "
            "what clients ask: give --control-key-file FILE, a secret that the server and all its "
            "workers share (openssl rand -hex 32 > FILE)"
        )


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach that address, as far as its text tells."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_tls(options: HttpOptions) -> None:
    """Raises SetupError where a certificate, its key or the authorities cannot be used."""
    if options.ssl_certfile is None:
        return
    given = {
        "--ssl-certfile": options.ssl_certfile,
        "--ssl-keyfile": options.ssl_keyfile,
        "--ssl-ca-certs": options.ssl_ca_certs,
    }
    for flag, path in given.items():
        if path is not None:
            _must_be_readable(flag, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, _no_password)
        if options.ssl_ca_certs is not None:
            context.load_verify_locations(options.ssl_ca_certs)
    except ssl.SSLError as error:
        told = " ".join(f"{flag} {path}" for flag, path in given.items() if path is not None)
        elsewhere = "" if options.ssl_keyfile else "; a key in a file of its own is --ssl-keyfile"
        raise SetupError(f"{told}: {_why(error)}{elsewhere}") from error


def _must_be_readable(flag: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise SetupError(f"{flag} {path}: {error.strerror}") from error


def _no_password() -> str:
    raise SetupError("--ssl-keyfile: the key is encrypted, and nobody is asked for its password")


def _why(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's"
    return "not PEM files of a certificate and its key"

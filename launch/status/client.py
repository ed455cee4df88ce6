"""Asks a server for `GET /status`. Must not load what a server loads."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import BadStatusLine, HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec

from bench.misdialled import misdialled, no_http
from common.errors import SetupError
from common.sections import HttpOptions
from launch.gateway.status import Status
from launch.security import api_keys

KEY_VARIABLES = ("BATON_API_KEY", "OPENAI_API_KEY")
_TIMEOUT_S = 5.0


class NoStatus(Exception):
    """Why there is none, in one line."""


@dataclass(frozen=True, slots=True)
class Source:
    """A server, and what it takes to be answered."""

    url: str  # without a / at its end
    api_key: str | None
    ssl_ca_certs: str | None  # file of authorities; None: the system's

    def ask(self) -> tuple[Status, bytes]:
        """The document, and as it came. Raises NoStatus."""
        if not (self.api_key or "-").isascii() or not (self.api_key or "-").isprintable():
            raise NoStatus("the API key has characters that no key has")
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        # No proxy: whoever watches a server reaches it.
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=self._context()))
        try:
            request = Request(f"{self.url}/status", headers=headers)
        except ValueError as error:
            raise SetupError(f"--url {self.url}: {error}") from None
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                content = answer.read()
        except HTTPError as error:
            with error:
                raise NoStatus(self._refused(error)) from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise NoStatus(self._unreached(reason)) from None
        except ValueError as error:  # a name that none can have
            raise SetupError(f"--url {self.url}: {error}") from None
        try:
            return msgspec.json.decode(content, type=Status), content
        except msgspec.DecodeError as error:
            raise NoStatus(
                f"what {self.url} answers is no status of this version's: {error}"
            ) from None

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise SetupError(f"--ssl-ca-certs {self.ssl_ca_certs}: {error}") from None

    def _unreached(self, reason: object) -> str:
        told = misdialled(self.url, "--url", reason)
        if told is None and isinstance(reason, BadStatusLine):
            told = no_http(self.url, "--url")
        why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return told or f"no server answers at {self.url} ({why}); --url says where it is"

    def _refused(self, error: HTTPError) -> str:
        match error.code:
            case HTTPStatus.UNAUTHORIZED if self.api_key is not None:
                return (
                    f"{self.url} does not know the key that it was sent: --api-key-file FILE, or "
                    f"the variable {' or '.join(KEY_VARIABLES)}"
                )
            case HTTPStatus.UNAUTHORIZED:
                return (
                    f"{self.url} asks for a key: --api-key-file FILE, or the variable "
                    f"{KEY_VARIABLES[0]}"
                )
            case HTTPStatus.NOT_FOUND:
                return f"{self.url} has no /status: it is another server, or an older Baton"
            case _:
                return f"{self.url}/status answers {error.code} {_reason(error)}".rstrip()


def _reason(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return error.reason


def key_of(file: str | None, environ: Mapping[str, str]) -> str | None:
    """The first key of that file, else that of a variable. Raises SetupError."""
    if file is not None:
        return api_keys(HttpOptions(api_key_file=file))[0]
    return next((environ[name] for name in KEY_VARIABLES if environ.get(name)), None)

"""Whose certificates a benchmark's requests trust: the system's, a file's, or anybody's.

Pure but for reading that file. Imports nothing of the engine.
"""

import argparse
import ssl
from pathlib import Path

import msgspec

from bench import reasons

FLAG = "--ssl-ca-certs"


class Trust(msgspec.Struct, frozen=True):
    """Of an https server."""

    ca_certs: str | None = None  # file of authorities, PEM; None: the system's
    insecure: bool = False  # any certificate will do

    def context(self) -> ssl.SSLContext | None:
        """None: what libraries do by themselves, the system's authorities. Raises OSError."""
        if self.ca_certs is None and not self.insecure:
            return None
        context = ssl.create_default_context(cafile=self.ca_certs)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def add_flags(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(FLAG, metavar="FILE", help="authorities of https, PEM [the system's]")
    parser.add_argument(
        "--insecure", action="store_true", help="trust any certificate of an https server"
    )


def trust(options: argparse.Namespace) -> Trust:
    return Trust(options.ssl_ca_certs, options.insecure)


def must_be_usable(options: argparse.Namespace) -> None:
    """Before anybody is asked. Raises ValueError."""
    if options.ssl_ca_certs is None:
        return
    reasons.must_be_readable(FLAG, Path(options.ssl_ca_certs))
    try:
        trust(options).context()
    except OSError as error:
        why = "it holds no certificates" if isinstance(error, ssl.SSLError) else reasons.of(error)
        raise ValueError(f"{FLAG} {options.ssl_ca_certs}: {why}") from None

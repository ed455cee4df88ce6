"""Why a server that is there cannot be talked to: another scheme, or a certificate nobody trusts.

Pure; the standard library alone, so that whoever asks with another one can use it.
"""

import ssl

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")  # OpenSSL's names


def misdialled(url: str, flag: str, error: object) -> str | None:
    """`flag` names another; `url` may have a name and = before it, as that flag takes it. None: it
    is something else that went wrong."""
    is_plain = "https://" not in url
    match error:
        case ssl.SSLCertVerificationError():
            return (
                f"the certificate of {url} is not trusted ({error.verify_message}): "
                "--ssl-ca-certs FILE names a self-signed one, or who signed it"
            )
        case ssl.SSLError() if error.reason in _NO_TLS:
            return f"{url} speaks no TLS: {_other(url, flag)}"
        case ConnectionResetError() if is_plain:
            return (
                f"{url} has ended the connection: it has just ended, or does not speak HTTP: "
                f"{_other(url, flag)}"
            )
        case ssl.SSLError() | ConnectionResetError():
            told = error.strerror or str(error) or type(error).__name__
            return f"{url} ends the connection ({told}): it may ask clients for certificates"
        case _:
            return None


def no_http(url: str, flag: str) -> str | None:
    """What it answered is none. None: nor is that to be expected."""
    is_plain = "https://" not in url
    return f"{url} does not speak HTTP: {_other(url, flag)}" if is_plain else None


def _other(url: str, flag: str) -> str:
    """The same place by the other scheme."""
    schemes = ("https:", "http:") if "https://" in url else ("http:", "https:")
    return f"{flag} {url.replace(*schemes, 1)} may be meant"

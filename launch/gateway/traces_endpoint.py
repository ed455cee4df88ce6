"""Where traces go, and whether they can. Imports no OpenTelemetry until they are wanted."""

from importlib.util import find_spec
from urllib.parse import urlsplit

from starlette.applications import Starlette

from common.errors import SetupError
from launch.gateway.watchers import Watchers

TRACES_PATH = "/v1/traces"
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def traces_url(endpoint: str) -> str:
    """What --otlp-traces-endpoint names, with OTLP's own path where it has none. Raises SetupError
    where that is no URL, and where the packages are not installed."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SetupError(
            f"--otlp-traces-endpoint {endpoint}: must be the URL of a collector that takes OTLP "
            "over HTTP, such as http://localhost:4318"
        )
    if not all(map(_is_there, _NEEDED)):
        raise SetupError(
            "--otlp-traces-endpoint needs OpenTelemetry: pip install 'baton-serving[otel]'"
        )
    path = parts.path if parts.path.strip("/") else TRACES_PATH
    return parts._replace(path=path).geturl()


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def trace(app: Starlette, watchers: Watchers, *, endpoint: str, model: str) -> None:
    """Requests to `app` are traced from now on. Raises SetupError."""
    url = traces_url(endpoint)
    from launch.gateway.tracing import Traced, Tracing, provider

    tracing = Tracing(provider(url).get_tracer("baton"), model)
    watchers.add(tracing)
    app.add_middleware(Traced, tracing=tracing)

"""Asks what `baton serve` asks before it starts anything, and goes on where that ends.

Starts nothing, fetches nothing; a port is bound for a moment.
"""

import socket
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from common.config import ServeConfig, WorkerConfig
from common.errors import SetupError
from common.log import check_request_log
from common.model.description import read_spec
from common.model.spec import ModelSpec
from common.rundir import check_run_dir
from common.text.load import read_template
from launch.check.facts import Refusal
from launch.checks import (
    check_page_dtypes,
    check_pages,
    check_processors,
    checked,
    local_workers,
)
from launch.fetch import located, model_name
from launch.gateway.traces_endpoint import traces_url
from launch.security import api_keys, check_control, check_tls
from launch.settings import cache_dir


def refusals(config: ServeConfig) -> tuple[Refusal, ...]:
    """All that can be known now."""
    questions: list[tuple[str, Callable[[], object]]] = [
        ("keys", lambda: api_keys(config)),
        ("tls", lambda: check_tls(config)),
        ("control", lambda: check_control(config)),
        ("port", lambda: _bind("--host", config.host, "--port", config.port)),
        ("port", lambda: _bind_control(config)),
        ("cores", lambda: check_processors(_workers(config))),
        ("gpu", lambda: check_page_dtypes(_workers(config))),
        ("model", lambda: _model(config)),
        ("memory", lambda: _check_pages(config)),
        ("run dir", lambda: check_run_dir(config.run_dir)),
        ("files", lambda: _check_files(config)),
        ("traces", lambda: _check_traces(config)),
    ]
    told: list[Refusal] = []
    for topic, ask in questions:
        try:
            ask()
        except SetupError as error:
            told.append(Refusal(topic=topic, text=str(error)))
    return tuple(told)


def _check_files(config: ServeConfig) -> None:
    """Those that are named and must be there, or be written to. Raises SetupError."""
    if config.chat_template is not None:
        read_template(Path(config.chat_template))
    if config.request_log is not None:
        check_request_log(config.request_log)


def _check_traces(config: ServeConfig) -> None:
    if config.otlp_traces_endpoint is not None:
        traces_url(config.otlp_traces_endpoint)


def _workers(config: ServeConfig) -> list[WorkerConfig]:
    return local_workers(replace(config, model="", served_model_name=""), join="")


def _model(config: ServeConfig) -> ModelSpec | None:
    """None: it is not here. Raises SetupError where it cannot be served."""
    path = located(config.model, cache_dir=cache_dir(config))
    if path is None:
        return None
    name = config.served_model_name or model_name(config.model)
    model = read_spec(path)
    checked(replace(config, model=str(path), served_model_name=name), [])
    return model


def _check_pages(config: ServeConfig) -> None:
    """Of a model that is here, and otherwise well."""
    try:
        check_page_dtypes(_workers(config))
        model = _model(config)
    except SetupError:  # told already
        return
    if model is not None:
        check_pages(_workers(config), model)


def _bind_control(config: ServeConfig) -> None:
    _bind("--control-host", config.control_host, "--control-port", config.control_port)


def _bind(host_flag: str, host: str, port_flag: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
            listener.listen()
        except OSError as error:
            raise SetupError(
                f"{host_flag} {host} {port_flag} {port}: {error.strerror}; choose another"
            ) from None

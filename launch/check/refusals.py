"""Asks what `baton serve` asks before it starts anything, and goes on where that ends.

Starts nothing, fetches nothing; a port is bound for a moment.
"""

import socket
from collections.abc import Callable

from msgspec.structs import replace

from common.config import ServeConfig
from common.errors import SetupError
from launch.check.facts import Refusal
from launch.checks import checked, local_workers
from launch.fetch import located, model_name
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
        ("model", lambda: _check_model(config)),
    ]
    told: list[Refusal] = []
    for topic, ask in questions:
        try:
            ask()
        except SetupError as error:
            told.append(Refusal(topic=topic, text=str(error)))
    return tuple(told)


def _check_model(config: ServeConfig) -> None:
    """Only of a model that is here."""
    path = located(config.model, cache_dir=cache_dir(config))
    if path is not None:
        name = config.served_model_name or model_name(config.model)
        settled = replace(config, model=str(path), served_model_name=name)
        checked(settled, local_workers(settled, join=""))


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

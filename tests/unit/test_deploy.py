"""What is under deploy/ against the product: flags, variables, ports, paths and times.

Nothing is started; how the files read to Docker, Kubernetes and systemd is `make deploy-check`.
"""

import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import ServeConfig
from common.ids import Role
from launch.settings import Joined, load_fetch, load_serve, load_worker
from launch.supervise import LEAVE_S

HOME = Path(__file__).parents[2]
DEPLOY = HOME / "deploy"
EXAMPLE = DEPLOY / "baton.example.toml"
ROLES = [Role.PREFILL, Role.DECODE]
CONTROL_PORT = 5555
ADDRESS = {"$(hostname -i)": "10.0.0.2", "${JOIN}": "tcp://10.0.0.1:5555", "%C": "/var/cache"}
"""What stands for an address, or a folder, until the service manager puts it in."""


@dataclass
class Command:
    """A command of the product, as one of the files has it."""

    words: list[str]  # after "baton"
    environ: dict[str, str]
    grace_s: float  # between being told to leave and being killed

    def load(self, toml: Path) -> ServeConfig | Joined | Path:
        """By the product's own reading, `toml` in the place of the installed file."""
        name, *rest = [re.sub(r"/etc/baton/baton\.toml", str(toml), word) for word in self.words]
        match name:
            case "serve":
                return load_serve(rest, self.environ)
            case "fetch":
                return load_fetch(rest, self.environ)
            case role:
                return load_worker(Role(role), rest, self.environ)

    def serve(self, toml: Path) -> ServeConfig:
        loaded = self.load(toml)
        assert isinstance(loaded, ServeConfig)
        return loaded

    def worker(self, toml: Path) -> Joined:
        loaded = self.load(toml)
        assert isinstance(loaded, Joined)
        return loaded


def words_of(text: str) -> list[str]:
    for placeholder, value in ADDRESS.items():
        text = text.replace(placeholder, value)
    program, *words = shlex.split(text)
    assert program.rpartition("/")[2] == "baton"
    return words


def seconds(text: str) -> float:
    return float(re.sub(r"s$", "", text))


# --- the image -----------------------------------------------------------------------------------


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")


def image_environ() -> dict[str, str]:
    (line,) = re.findall(r"^ENV (.*)", dockerfile(), re.MULTILINE)
    pairs = dict(pair.split("=", 1) for pair in line.split())
    return {name: value for name, value in pairs.items() if name.startswith("BATON_")}


def test_the_image_serves_at_the_port_that_it_exposes_and_is_asked_at() -> None:
    config = load_serve([], image_environ())
    assert f"EXPOSE {config.port}" in dockerfile()
    assert config.host == "0.0.0.0"
    (check,) = re.findall(r"HEALTHCHECK .* CMD (.*)", dockerfile())
    program, flag, code = json.loads(check)
    assert (program, flag) == ("python", "-c")
    with answering() as (port, asked):
        nobody = "http://127.0.0.1:1"  # Docker's own configuration may name a proxy
        environ = {"BATON_PORT": str(port), "HTTP_PROXY": nobody, "http_proxy": nobody}
        assert subprocess.run([sys.executable, flag, code], env=environ, check=True).returncode == 0
    assert asked == ["/ready"]


@contextmanager
def answering() -> Iterator[tuple[int, list[str]]]:
    """A server that answers 200: its port, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def test_the_image_runs_as_nobody_and_keeps_models_where_it_may_write() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+", dockerfile(), re.MULTILINE)
    assert int(user) >= 10_000
    models = load_serve([], image_environ()).cache_dir
    assert f"VOLUME {models}" in dockerfile()
    assert f"install -d -o {user} -g {user} {models}" in dockerfile()


def test_all_that_the_package_is_built_from_is_in_the_image() -> None:
    settings = tomllib.loads((HOME / "pyproject.toml").read_text())
    packages = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    project = settings["project"]
    needed = [*packages, *project["license-files"], project["readme"], "setup.py"]
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    outside = [name for name in needed if f"!{name.partition('/')[0]}" not in kept]
    assert {f"!{name.rstrip('*')}" for name in outside} <= set(kept)
    for line in kept:
        if line.startswith("!"):
            assert (HOME / line[1:]).exists(), line


# --- compose -------------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def composed(name: str) -> Command:
    service = compose()["services"][name]
    text = service["command"][0].replace("$$", "$").removeprefix("exec ")
    return Command(words_of(text), image_environ(), seconds(service["stop_grace_period"]))


def test_compose_has_a_service_for_each_pool_and_they_find_each_other() -> None:
    gateway = composed("gateway").serve(EXAMPLE)
    assert (gateway.prefill.workers, gateway.decode.workers) == (0, 0)
    assert gateway.control_port == CONTROL_PORT
    for role in ROLES:
        worker = composed(role).worker(EXAMPLE)
        assert worker.join == f"tcp://gateway:{CONTROL_PORT}"
        assert worker.config.control_key_file == gateway.control_key_file
    (published,) = compose()["services"]["gateway"]["ports"]
    assert published.rpartition(":")[2] == str(gateway.port)
    assert isinstance(
        Command(compose()["services"]["model"]["command"], image_environ(), 0).load(EXAMPLE), Path
    )


@pytest.mark.parametrize("name", ["gateway", *ROLES])
def test_composed_services_have_what_they_read_and_time_to_leave(name: str) -> None:
    command, service = composed(name), compose()["services"][name]
    loaded = command.load(EXAMPLE)
    config = loaded.config if isinstance(loaded, Joined) else loaded
    assert isinstance(config, ServeConfig)
    assert command.grace_s >= config.shutdown_timeout + LEAVE_S
    key = str(config.control_key_file)
    assert key.removeprefix("/run/secrets/") in service["secrets"]
    targets = {volume.split(":")[1] for volume in service["volumes"]}
    assert {"/etc/baton/baton.toml", str(config.cache_dir)} <= targets
    assert ("disable" in service.get("healthcheck", {})) is (name != "gateway")
    assert service["read_only"] and service["cap_drop"] == ["ALL"]


# --- Kubernetes ----------------------------------------------------------------------------------


def resources(name: str) -> dict[tuple[str, str], Any]:
    """By kind and name."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pod(name: str) -> dict[str, Any]:
    return resources(name)["Deployment", f"baton-{name}"]["spec"]["template"]["spec"]


def deployed(name: str) -> Command:
    container = pod(name)["containers"][0]
    environ = {one["name"]: one.get("value", "10.0.0.2") for one in container["env"]}
    grace_s = pod(name)["terminationGracePeriodSeconds"]
    return Command(container["args"], image_environ() | environ, grace_s)


def toml() -> Path:
    return DEPLOY / "kubernetes" / "baton.toml"


def test_kubernetes_services_and_ports_agree() -> None:
    gateway = deployed("gateway").serve(toml())
    ports = {one["name"]: one["containerPort"] for one in pod("gateway")["containers"][0]["ports"]}
    assert ports == {"http": gateway.port, "control": gateway.control_port}
    services = resources("gateway")
    (control,) = services["Service", "baton-control"]["spec"]["ports"]
    assert control["port"] == gateway.control_port
    labels = services["Deployment", "baton-gateway"]["spec"]["template"]["metadata"]["labels"]
    for service in ("baton", "baton-control"):
        assert services["Service", service]["spec"]["selector"].items() <= labels.items()
    for role in ROLES:
        assert deployed(role).worker(toml()).join == f"tcp://baton-control:{gateway.control_port}"


@pytest.mark.parametrize("role", ROLES)
def test_a_worker_pod_is_ready_when_its_link_to_the_gateway_stands(role: Role) -> None:
    container = pod(role)["containers"][0]
    _, _, pattern, *_ = container["readinessProbe"]["exec"]["command"]
    there = re.search(pattern, f" 0: 0200000A:9C40 0100000A:{CONTROL_PORT:04X} 01 00000000:000000")
    waits = re.search(pattern, f" 0: 0200000A:9C40 0100000A:{CONTROL_PORT:04X} 02 00000000:000000")
    serves = re.search(pattern, f" 0: 0200000A:{CONTROL_PORT:04X} 0100000A:9C40 01 00000000:00000")
    assert there and not waits and not serves
    assert container["name"] == role
    assert ("PodDisruptionBudget", f"baton-{role}") in resources(role)


@pytest.mark.parametrize("name", ["gateway", *ROLES])
def test_pods_have_what_they_read_and_time_to_leave(name: str) -> None:
    loaded = deployed(name).load(toml())
    config = loaded.config if isinstance(loaded, Joined) else loaded
    assert isinstance(config, ServeConfig)
    container = pod(name)["containers"][0]
    stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])
    assert deployed(name).grace_s >= config.shutdown_timeout + LEAVE_S + float(stop[-1])
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod(name)["volumes"]}
    assert set(mounts.values()) == set(volumes)
    folder, _, file = str(config.control_key_file).rpartition("/")
    secret = volumes[mounts[folder]]["secret"]["secretName"]
    made = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert {"name": secret, "files": [file]} in made["secretGenerator"]
    assert {"name": "baton", "files": ["baton.toml"]} in made["configMapGenerator"]
    assert {"/etc/baton", "/tmp", str(config.cache_dir)} <= mounts.keys()
    assert pod(name)["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_gateway_is_asked_at_paths_that_there_are() -> None:
    routed = "".join(path.read_text() for path in (HOME / "launch" / "gateway").rglob("*.py"))
    container = pod("gateway")["containers"][0]
    probes = {kind: container[kind]["httpGet"] for kind in container if kind.endswith("Probe")}
    assert probes["readinessProbe"]["path"] == "/ready"  # every pool can serve
    assert probes["livenessProbe"]["path"] == "/health"  # else a pool that is short would end it
    for probe in probes.values():
        assert f'"{probe["path"]}"' in routed


# --- systemd -------------------------------------------------------------------------------------


def unit(name: str) -> dict[str, str]:
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return dict(pair for pair in pairs if len(pair) == 2)


def unit_commands(name: str) -> Iterator[tuple[Mapping[str, str], Command]]:
    """The command of a unit; that of a template once for each pool."""
    settings = unit(name)
    key, _, value = settings["Environment"].partition("=")
    environ = {key: value, "BATON_CONTROL_HOST": "10.0.0.2", "BATON_CONTROL_KEY_FILE": "key"}
    grace_s = seconds(settings["TimeoutStopSec"])
    for instance in ROLES if "@" in name else [""]:
        words = words_of(settings["ExecStart"].replace("%i", instance))
        yield settings, Command(words, environ, grace_s)


@pytest.mark.parametrize("name", ["baton.service", "baton-worker@.service"])
def test_units_start_what_there_is_and_give_it_time_to_leave(name: str) -> None:
    for settings, command in unit_commands(name):
        loaded = command.load(EXAMPLE)
        config = loaded.config if isinstance(loaded, Joined) else loaded
        assert isinstance(config, ServeConfig)
        assert command.grace_s >= config.shutdown_timeout + LEAVE_S
        assert settings["KillMode"] == "mixed"  # workers are told by the server alone


def test_the_servers_unit_is_told_of_it_and_reloads_it() -> None:
    settings = unit("baton.service")
    assert (settings["Type"], settings["NotifyAccess"]) == ("notify", "main")
    assert "-HUP $MAINPID" in settings["ExecReload"]
    assert seconds(settings["WatchdogSec"]) > 0


# --- the example of a configuration --------------------------------------------------------------


def test_the_example_loads_and_is_the_defaults_where_it_says_so() -> None:
    config = load_serve(["--config", str(EXAMPLE)], {})
    assert (config.prefill.workers, config.decode.workers) == (1, 1)
    assert config.max_model_len == 4096


def test_every_key_of_the_example_is_one_also_behind_a_remark(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    whole = re.sub(r"^# (\w+ = .*)$", r"\1", text, flags=re.MULTILINE)
    assert whole != text
    path = tmp_path / "whole.toml"
    path.write_text(whole)
    assert load_serve(["--config", str(path)], {}).control_port == CONTROL_PORT


def given(argv: Sequence[str], **environ: str) -> ServeConfig:
    return load_serve(argv, environ)


def test_the_order_that_the_example_tells(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text("max_model_len = 1000\n")
    file = ("--config", str(path))
    assert given(file).max_model_len == 1000
    assert given(file, BATON_MAX_MODEL_LEN="2000").max_model_len == 2000
    flag = ("--max-model-len", "3000")
    assert given((*file, *flag), BATON_MAX_MODEL_LEN="2000").max_model_len == 3000

"""A worker process from its configuration to its exit code: everything but its core.

Start-up lines are `key=value`: what is loading, the memory it takes, how many tokens of KV fit.
"""

import argparse
import logging
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
from msgspec.structs import replace

from common.config import WorkerConfig
from common.curve import read_key
from common.engine.constraints import Constraints
from common.engine.device import Device, open_device
from common.engine.device_thread import AsyncDeviceThread, DeviceThread, Passes
from common.engine.gpu_memory import CONTEXT_BYTES, pages_bytes
from common.engine.gpu_profile import measured
from common.engine.journal import Journal
from common.engine.kind import Kind, Mover, Pages, Parts
from common.engine.links import Links
from common.engine.process import die_with, leave_joining_to_parent, on_stop, pin
from common.engine.runner import Runner
from common.engine.shell import Shell
from common.engine.sizing import Sizes, kv_name, sizes
from common.engine.stream import open_stream
from common.engine.wakeup import Wakeup
from common.errors import PeerRefused, SetupError
from common.ids import InstanceId
from common.kernels import ops
from common.kernels.matrix import packs
from common.kernels.path import kernel_path, kernels
from common.kernels.triton import choice
from common.kv.cache import KVCache, tensor_over
from common.kv.host import HostMemory
from common.kv.pages import PagePool
from common.kv.prefix import pages_fingerprint
from common.log import RequestLog, line, log_what_python_says, set_up_logging
from common.messages import PROTOCOL, Hello, ModelIdentity, Peer
from common.model.description import read_spec
from common.model.load import DTYPES, LoadedModel, load_model, weights_bytes
from common.rundir import host_id, make_private, temporary
from common.text.grammar import Grammars, GrammarTokenizer
from common.text.load import load_text_model
from common.values import Quantization
from common.wire import Mailbox

EXIT_CRASHED = 1
EXIT_SETUP = 2

_GOODBYE_MS = 200  # for the last messages to leave
_DEVICE_S = 5.0  # for the last pass to end
_WILDCARDS = ("0.0.0.0", "::", "[::]", "*")
_PROGRESS_S = 10.0

_log = logging.getLogger(__name__)


def run_worker(
    kind: Kind,
    config: WorkerConfig,
    *,
    instance: InstanceId | None = None,
    parent: int | None = None,
) -> int:
    """Live until told to stop; the exit code. Raises SetupError where the operator must act.

    With a `parent` (a process id) the worker ends when that does, and leaves Ctrl-C to it.
    """
    if parent is not None:
        die_with(parent)
    instance = instance or InstanceId(uuid.uuid4().hex)
    name = f"{config.name}/{instance[:8]}"
    set_up_logging(config.log_level, name, log_format=config.log_format)
    log_what_python_says()
    if parent is not None:
        leave_joining_to_parent(config.log_level)
    pin(config.cpus)
    with suppress(RuntimeError):  # already set, in a process that embeds us
        torch.set_num_interop_threads(1)
    worker = _Worker(kind, config, instance)
    try:
        return worker.run(parent)
    except (SetupError, PeerRefused) as error:
        raise SetupError(str(error)) from error
    except Exception:  # noqa: BLE001 - it ends the process
        _log.exception(line("crashed"))
        return EXIT_CRASHED
    finally:
        worker.close()


def entry(kind: Kind, argv: Sequence[str]) -> NoReturn:
    """`python -P -m ROLE.worker --config-fd N`: as a launcher starts it."""
    parser = argparse.ArgumentParser(description="Started by a launcher; people use `baton`.")
    parser.add_argument("--config-fd", type=int, required=True, help="to read a JSON config from")
    parser.add_argument("--instance", help="uuid4 hex; drawn if not given")
    parser.add_argument("--parent", type=int, help="process id of the launcher: end with it")
    told = parser.parse_args(argv)
    with os.fdopen(told.config_fd, "rb") as file:
        config = msgspec.json.decode(file.read(), type=WorkerConfig)
    instance = InstanceId(told.instance) if told.instance else None
    try:
        code = run_worker(kind, config, instance=instance, parent=told.parent)
    except SetupError as error:
        _log.error(line("cannot_start", detail=str(error)))
        code = EXIT_SETUP
    raise SystemExit(code)


class _Worker:
    """The parts of a running worker, made in order, closed in the reverse order."""

    def __init__(self, kind: Kind, config: WorkerConfig, instance: InstanceId) -> None:
        self._kind = kind
        self._config = config
        self._instance = instance
        self._stack = ExitStack()
        self._exit_code: int | None = None
        self._device = Device("cpu")
        self._passes: Passes | None = None

    def run(self, parent: int | None) -> int:
        size = self._size()
        self._device = device = open_device(self._config.device, size.dtype, fp8=size.kv.is_fp8)
        grammars = Grammars(self._tokens)
        grammars.prepare()
        loaded = self._load(size, device)
        if not self._config.kv_cache_memory_bytes:
            size = self._divided(size, loaded)
        pages = self._kind.make_pages(size.n_pages, size.kv.page_bytes, device.number)
        self._stack.callback(pages.close)
        host_pages = self._host_pages(size)
        cache = KVCache(size.kv, tensor_over(pages, device.torch))
        runner = self._warm(Runner(loaded.model, cache, Constraints(grammars)), size)
        wakeup = Wakeup()
        self._passes = self._made_ready(runner, size, loaded.spec.vocab_size, wakeup)
        shell = self._shell(size, loaded, (pages, host_pages), self._passes, wakeup)
        on_stop(lambda at_once: shell.stop(at_once=at_once), parent)
        shell.links.join(self._config.join, time.monotonic())
        self._exit_code = shell.run()
        return self._exit_code

    def close(self) -> None:
        """Leave nothing behind. If a pass still computes, end the process under it."""
        self._stack.close()
        if self._passes is not None and not self._passes.close(_DEVICE_S):
            _log.error(line("pass_did_not_end", after_s=_DEVICE_S))
            logging.shutdown()
            os._exit(EXIT_CRASHED if self._exit_code is None else self._exit_code)

    def _tokens(self) -> GrammarTokenizer:
        began = time.monotonic()
        tokenizer = GrammarTokenizer(load_text_model(Path(self._config.model)))
        _log.debug(line("grammars_ready", seconds=time.monotonic() - began))
        return tokenizer

    # --- the parts ---------------------------------------------------------------------------

    def _host_pages(self, size: Sizes) -> Pages | None:
        make = self._kind.make_host_pages
        if make is None or not size.n_host_pages:
            return None
        pages = make(size.n_host_pages, size.kv.page_bytes)
        self._stack.callback(pages.close)
        _log.info(line("host_memory", pages=size.n_host_pages, kv_tokens=size.n_host_tokens))
        return pages

    def _size(self) -> Sizes:
        config = self._config
        path = Path(config.model)
        size = sizes(config, read_spec(path))
        _log.info(
            line(
                "memory",
                model=config.served_model_name,
                dtype=size.dtype,
                kv_cache_dtype=size.kv.dtype,
                quantization=config.quantization,
                weights_bytes=weights_bytes(path, DTYPES[size.dtype], config.quantization),
                kv_cache_memory_bytes=size.pool_bytes,
                kv_tokens=size.n_tokens,
                max_model_len=size.max_model_len,
                block_size=size.kv.page_tokens,
            )
        )
        return size

    def _load(self, size: Sizes, device: Device) -> LoadedModel:
        config = self._config
        began = time.monotonic()
        dtype = DTYPES[size.dtype]
        ops.set_threads(config.threads, dtype)
        n_cpus = len(os.sched_getaffinity(0))
        if config.threads > n_cpus:  # they wait for each other
            _log.warning(line("more_threads_than_cpus", threads=config.threads, cpus=n_cpus))
        how = kernels(dtype, device.torch)
        _log.debug(line("loading", path=config.model, device=device.name, kernels=how))
        loaded = load_model(
            Path(config.model),
            dtype,
            self._shared_at(device),
            size.max_model_len,
            _Progress(),
            quantization=config.quantization,
            device=device.torch,
        )
        self._stack.callback(loaded.close)
        if config.quantization != "none" and not packs(dtype):
            _log.warning(line("weights_widened", quantization=config.quantization, kernels=how))
        took = {"seconds": time.monotonic() - began, "bytes": loaded.weights_bytes}
        _log.info(line("loaded", **took, device=device.name, kernels=how))
        return loaded

    def _shared_at(self, device: Device) -> Path | None:
        """Where those who share the weights meet; None: they are this worker's own."""
        config = self._config
        alone = device.number is not None and config.gpu_sharers == 1
        return None if alone or config.run_dir is None else Path(config.run_dir)

    def _divided(self, size: Sizes, loaded: LoadedModel) -> Sizes:
        """What the device's memory leaves for pages."""
        config, device = self._config, self._device.torch
        n_vocab, common = loaded.spec.vocab_size, loaded.common_bytes
        needs = measured(loaded.model, size, config, n_vocab, device, common)
        device_bytes = torch.cuda.get_device_properties(device).total_memory
        n_bytes = pages_bytes(device_bytes, config.gpu_memory_utilization, needs)
        _log.info(
            line(
                "gpu_memory",
                device_bytes=device_bytes,
                utilization=config.gpu_memory_utilization,
                context_bytes=CONTEXT_BYTES,
                weights_bytes=needs.weights_bytes,
                weights_shared_by=config.gpu_sharers if common else 1,
                activations_bytes=needs.activations_bytes,
                graphs_bytes=needs.graphs_bytes,
                pages_bytes=n_bytes,
            )
        )
        self._config = replace(config, kv_cache_memory_bytes=n_bytes)
        return self._size()

    def _warm(self, runner: Runner, size: Sizes) -> Runner:
        n_tokens = min(self._config.chunk_tokens, size.max_model_len - 1)
        seconds = runner.warm_up(n_tokens)
        _log.debug(line("warmed_up", tokens=n_tokens, seconds=seconds))
        return runner

    def _made_ready(self, runner: Runner, size: Sizes, n_vocab: int, wakeup: Wakeup) -> Passes:
        device = self._device
        if not choice.computes_on(device.torch):
            return DeviceThread(runner.run, wakeup.ring)
        stream = open_stream(device)
        begin = self._kind.begin_passes(runner, stream, self._config, size, n_vocab)
        return AsyncDeviceThread(begin, wakeup.ring)

    def _shell(
        self,
        size: Sizes,
        loaded: LoadedModel,
        memory: tuple[Pages, Pages | None],
        passes: Passes,
        wakeup: Wakeup,
    ) -> Shell:
        config, instance, stack = self._config, self._instance, self._stack
        pages, host_pages = memory
        run_dir = self._run_dir()
        curve = None if config.control_key_file is None else read_key(config.control_key_file)
        request_log = RequestLog(config.request_log, instance, config.role)
        stack.callback(request_log.close)
        mover = self._kind.open_mover(
            config.transport,
            pages,
            instance=instance,
            run_dir=run_dir,
            listen_host=config.control_host,
            wake=wakeup.ring,
            curve=curve,
            host_memory=host_pages,
        )
        stack.callback(mover.close)
        mailbox = Mailbox(
            instance, config.role, run_dir=run_dir, listen=self._listen(), curve=curve
        )
        stack.callback(mailbox.close, linger_ms=_GOODBYE_MS)
        limits = size.limits(config)
        model = _identity(config, size, loaded, self._device.torch)
        hello = Hello(
            protocol=PROTOCOL,
            peer=Peer(
                instance=instance,
                role=config.role,
                host=host_id(),
                endpoints=mailbox.endpoints,
            ),
            model=model,
            limits=limits,
            pool=mover.key,
        )
        pool = PagePool(size.n_pages, pages.generations)
        host = _host(mover, host_pages)
        fingerprint = pages_fingerprint(model.fingerprint, model.kv_dtype)
        parts = Parts(limits=limits, pool=pool, host=host, fingerprint=fingerprint)
        _log.debug(line("joining", gateway=config.join, threads=config.threads))
        return Shell(
            core=self._kind.make_core(config, parts),
            mailbox=mailbox,
            links=Links(mailbox, hello),
            device=passes,
            pulls=mover,
            wakeup=wakeup,
            journal=Journal(request_log, None if host is None else host.pool),
            drain_s=config.shutdown_timeout,
        )

    def _run_dir(self) -> Path:
        """The given one, or one of our own for as long as we live."""
        if self._config.run_dir is not None:
            path = Path(self._config.run_dir)
            make_private(path)
            return path
        return self._stack.enter_context(temporary())

    def _listen(self) -> str:
        host = self._config.control_host
        if host in _WILDCARDS:
            raise SetupError(
                f"--control-host {host} is no address that other workers could reach: name the one"
            )
        return f"[{host}]:0" if ":" in host and not host.startswith("[") else f"{host}:0"


def _host(mover: Mover, pages: Pages | None) -> HostMemory | None:
    if pages is None or mover.host_key is None:
        return None
    return HostMemory(mover.host_key, PagePool(len(pages.generations), pages.generations))


class _Progress:
    """A line now and then while weights load."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()

    def __call__(self, what: str, done_bytes: int, of_bytes: int) -> None:
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_S:
            self._said_at = now
            _log.info(line("loading", what=what, done_bytes=done_bytes, of_bytes=of_bytes))


def _identity(
    config: WorkerConfig, size: Sizes, loaded: LoadedModel, device: torch.device
) -> ModelIdentity:
    exact = size.dtype == "float32"
    return ModelIdentity(
        name=config.served_model_name,
        fingerprint=loaded.fingerprint,
        kv_dtype=kv_name(size.kv, size.dtype),
        page_layout=size.kv.describe(),
        kernel_path=_exact_path(config.quantization, device) if exact else "",
    )


def _exact_path(quantization: Quantization, device: torch.device) -> str:
    """What an answer in float32 depends on. A GGUF file's groups widen to what the file says."""
    path = kernel_path(device)
    return f"{path}+int8" if quantization == "int8" else path

"""A gateway's part of the control plane: its sockets, links and engine. Must decide nothing."""

from pathlib import Path

from common.config import ServeConfig
from common.curve import read_key
from common.engine.links import Links
from common.ids import InstanceId, Role
from common.log import RequestLog
from common.messages import PROTOCOL, Hello, ModelIdentity, Peer
from common.metrics import GatewayMetrics
from common.rundir import host_id
from common.wire import Mailbox
from launch.gateway.attempts import GatewayOptions
from launch.gateway.engine import Engine

GOODBYE_MS = 100  # for the last messages to leave


class Control:
    """Of one process. All calls come from its event loop's thread."""

    def __init__(
        self,
        config: ServeConfig,
        identity: ModelIdentity,
        instance: InstanceId,
        metrics: GatewayMetrics,
        *,
        port: int,
    ) -> None:
        """`identity`: what workers must have; `config.run_dir` is settled. Raises SetupError where
        it cannot listen at `port` (0: any)."""
        self.instance = instance
        self.request_log = RequestLog(config.request_log, instance, Role.GATEWAY)
        self.mailbox = Mailbox(
            instance,
            Role.GATEWAY,
            run_dir=Path(config.run_dir or ""),
            listen=f"{config.control_host}:{port}",
            curve=None if config.control_key_file is None else read_key(config.control_key_file),
        )
        peer = Peer(
            instance=instance,
            role=Role.GATEWAY,
            host=host_id(),
            endpoints=self.mailbox.endpoints,
        )
        hello = Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
        self.links = Links(self.mailbox, hello, reference=identity)
        self.engine = Engine(
            self.mailbox,
            self.links,
            GatewayOptions(
                max_requests=config.max_waiting_requests,
                disaggregate=config.disaggregate,
                recovery_s=config.recovery_seconds,
                admission=config.admission,
            ),
            request_log=self.request_log,
            metrics=metrics,
        )
        metrics.gateway(instance, self.engine.counts)

    def close(self) -> None:
        """Nothing is sent or heard any more."""
        self.engine.close()
        self.mailbox.close(linger_ms=GOODBYE_MS)
        self.request_log.close()

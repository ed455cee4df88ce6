"""A server whose processes speak through a relay, and what every answer of it must be."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from common.ids import Role
from common.messages import AnyMessage
from tests.api_client import Answer, Body, metrics, run, until
from tests.servers import RunningServer, launched
from tests.system.relay import Fate, Letter, Relay, Way
from tests.system.streams import SMALL

PROMPT = [(13 * n * n + 7 * n) % 40_000 + 500 for n in range(200)]  # 4 chunks, 13 pages
LENGTHS = (16, 18, 20)  # of answers: that no two end in one step
ANSWER_S = 90.0  # that an answer may take, whatever is done to it
REST_S = 60.0  # the same until a worker is back and nothing is left
AT_LEAST = 3  # requests while something else goes on
ROLES = (Role.PREFILL, Role.DECODE)
_SHARES = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")


class Trap:
    """Waits for a letter of that kind. With the first one something happens, once."""

    def __init__(
        self,
        way: Way,
        fits: Callable[[AnyMessage], bool],
        then: Callable[[Letter], Fate],
    ) -> None:
        self.sprung = threading.Event()
        self._way, self._fits, self._then = way, fits, then

    def __call__(self, letter: Letter) -> Fate | None:
        if self.sprung.is_set() or letter.way != self._way or not self._fits(letter.message):
            return None
        fate = self._then(letter)
        self.sprung.set()
        return fate


class Relayed:
    """One prefill and one decode worker, and what they say with nobody in their way."""

    def __init__(self, server: RunningServer, relay: Relay, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self.relay = relay
        self._pool = pool
        asked = [self.begin("undisturbed", n_tokens) for n_tokens in LENGTHS]
        self._expected = {n: one.result(ANSWER_S) for n, one in zip(LENGTHS, asked, strict=True)}
        self.settle()

    def begin(self, salt: str, n_tokens: int = LENGTHS[0]) -> "Future[Answer]":
        """A stream in flight. Answers of different salts share no pages: each is computed anew."""
        url, body = self.server.url, asking(salt, n_tokens)
        return self._pool.submit(run, url, lambda client: client.complete(body, stream=True))

    def begin_unread(self, salt: str) -> http.client.HTTPConnection:
        """The same, of which nobody reads anything; close it to leave."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        body = json.dumps({**asking(salt, LENGTHS[-1]), "stream": True})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        return connection

    def check(self, asked: "Future[Answer]", n_tokens: int = LENGTHS[0]) -> None:
        """It ends, and says what it would have said undisturbed: to the bit, no token twice."""
        said = asked.result(ANSWER_S).said
        assert said == self._expected[n_tokens].said, self.server.tail()

    def pid(self, role: Role) -> int:
        (pid,) = self.server.workers(role)
        return pid

    def settle(self) -> None:
        """Both workers are up, neither holds a page, and they know each other."""
        until(self.is_at_rest, f"at rest; {self.server.tail()}", within_s=REST_S)
        assert len(self.server.processes()) == 3
        assert self.relay.error is None

    def is_at_rest(self) -> bool:
        now = metrics(self.server.url)
        shares = [value for name in _SHARES for role in ROLES for value in now.each(name, role)]
        return len(shares) == len(_SHARES) * len(ROLES) and not any(shares)

    def meet(self) -> None:
        """Requests are answered, and in a while by both workers again: a pair between which pages
        did not pass is left alone for a few seconds."""
        self.settle()
        before, deadline = self.n_remote(), time.monotonic() + REST_S
        while self.n_remote() == before:
            assert time.monotonic() < deadline, self.server.tail()
            self.check(self.begin(f"met at {time.monotonic()}"))
        self.settle()

    def n_remote(self) -> float:
        """Attempts whose prompt a prefill worker was to compute."""
        return self._sum("disaggregation_total", {("decision", "remote")})

    def n_attempts(self) -> float:
        return self._sum("attempts_total", set())

    def _sum(self, wanted: str, having: set[tuple[str, str]]) -> float:
        values = metrics(self.server.url).values
        return sum(
            value
            for (name, labels), value in values.items()
            if name == f"baton:{wanted}" and having <= labels
        )

    def total(self, name: str, role: Role) -> float:
        return metrics(self.server.url).total(name, role)

    @contextmanager
    def busy(self, salt: str) -> Iterator[None]:
        """Meanwhile one request follows the other, and each is answered as if nothing was."""
        enough = threading.Event()
        asked: list[Future[Answer]] = []

        def go_on() -> None:
            while len(asked) < AT_LEAST or not enough.is_set():
                asked.append(self.begin(f"{salt} {len(asked)}"))
                asked[-1].exception(ANSWER_S)

        asking = threading.Thread(target=go_on)
        asking.start()
        try:
            yield
        finally:
            enough.set()
            asking.join()
        for one in asked:
            self.check(one)


def asking(salt: str, n_tokens: int) -> Body:
    return {
        "prompt": PROMPT,
        "max_tokens": n_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
        "logprobs": 0,
    }


@contextmanager
def relaying(model: Path, transport: str) -> Iterator[Relayed]:
    """From both workers up to nothing left."""
    with TemporaryDirectory(prefix="br-") as home, ThreadPoolExecutor(8) as pool:
        run_dir = Path(home)
        flags = ("--disaggregate", "always", "--transport", transport, "--run-dir", home)
        with launched(model, *SMALL, *flags) as server:
            until(lambda: bool(list(run_dir.glob("*.ctl"))), "the gateway listens")
            (gateway,) = run_dir.glob("*.ctl")
            with Relay(gateway) as relay:
                server.wait_until_ready()
                yield Relayed(server, relay, pool)
                code = server.stop()
                assert code == 0, f"exit code {code}; {server.tail()}"
                server.assert_nothing_left()

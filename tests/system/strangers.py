"""Whoever can reach a socket and should not speak there: frames and bytes that mean nothing."""

import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random

import zmq

LINGER_MS = 5000


def rubbish(draw: Random, to: bytes, valid: Sequence[bytes], n: int) -> Iterator[list[bytes]]:
    """`n` messages for a control socket of instance `to`, none of which is one, whoever sends it.
    `valid`: payloads that are."""
    for at in range(n):
        payload = draw.choice(valid)
        yield (
            [draw.randbytes(draw.randrange(300))],
            [to, draw.randbytes(draw.randrange(300)), draw.randbytes(8)],
            [to, payload[: draw.randrange(len(payload))], draw.randbytes(8)],
            [to, payload + draw.randbytes(1), draw.randbytes(8)],
            [to, b"\xc1" + payload, draw.randbytes(8)],
            [draw.randbytes(32), payload, draw.randbytes(8)],
            [to, payload, payload],
            [to, payload],
            [to, *(draw.randbytes(8) for _ in range(draw.randrange(2, 50)))],
            [to, nested(draw.randrange(2000, 200_000))],
        )[at % 10]


def nested(depth: int) -> bytes:
    """A Hello that is an empty list in a list in a list ..."""
    return b"\x82\xa4type\xa5Hello\xa1x" + b"\x91" * depth + b"\x90"


@contextmanager
def dealer(endpoint: str, name: bytes) -> Iterator["zmq.Socket[bytes]"]:
    """What is sent has arrived in the end."""
    context = zmq.Context()
    talker = context.socket(zmq.DEALER)
    talker.set(zmq.ROUTING_ID, name)
    talker.set(zmq.LINGER, LINGER_MS)
    talker.connect(endpoint)
    try:
        yield talker
    finally:
        talker.close()
        context.term()


def speak(endpoint: str, name: bytes, many: Iterable[Sequence[bytes]]) -> int:
    """Send them all; returns how many."""
    n = 0
    with dealer(endpoint, name) as talker:
        for frames in many:
            talker.send_multipart(frames)
            n += 1
    return n


def shout(endpoint: str, noise: bytes) -> None:
    """Bytes that are no ZeroMQ. Whoever is cut off meanwhile has said enough."""
    kind, _, address = endpoint.partition("://")
    with suppress(OSError):
        if kind == "tcp":
            host, _, port = address.rpartition(":")
            talker = socket.create_connection((host, int(port)), timeout=5)
        else:
            talker = socket.socket(socket.AF_UNIX)
            talker.connect(address)
        with talker:
            talker.sendall(noise)


def knock(door: str, questions: Iterable[bytes]) -> int:
    """At a socket where descriptors are passed, one connection a question; returns how many. None
    is answered."""
    n = 0
    for question in questions:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
            asker.settimeout(5)
            asker.connect(door)
            asker.send(question)
            with suppress(ConnectionError):
                assert asker.recv(100) == b""
        n += 1
    return n

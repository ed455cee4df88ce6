import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import InvariantBroken
from common.ids import HostId, InstanceId
from common.messages import RegionKey
from transfer.api import Status, Ticket
from transfer.inbox import Inbox
from transfer.tickets import Reason, Tickets

REMOTE = RegionKey(
    owner=InstanceId("o"), host=HostId("h"), region=0, n_pages=1, page_bytes=4096, doors={}
)


class PrivatePages:
    """A region in ordinary memory."""

    fd = None

    def __init__(self) -> None:
        self.pages: NDArray[np.uint8] = np.zeros((1, 4096), np.uint8)
        self.generations: NDArray[np.uint64] = np.zeros(1, np.uint64)


def test_a_ticket_ends_once_and_is_forgotten_when_polled_final() -> None:
    tickets = Tickets(lambda: None)
    pull = tickets.open(REMOTE, PrivatePages(), ())
    assert tickets.poll(pull.ticket) is Status.PENDING
    tickets.done(pull)
    with pytest.raises(InvariantBroken):
        tickets.fail(pull, Reason.STALE, "")
    assert tickets.poll(pull.ticket) is Status.DONE
    with pytest.raises(InvariantBroken):
        tickets.poll(pull.ticket)


def test_the_user_is_woken_at_each_end_and_only_then() -> None:
    n_wakes = 0

    def wake() -> None:
        nonlocal n_wakes
        n_wakes += 1

    tickets = Tickets(wake)
    first, second = (tickets.open(REMOTE, PrivatePages(), ()) for _ in range(2))
    tickets.cancel(first.ticket)
    assert n_wakes == 0
    tickets.fail(first, Reason.CANCELLED, "")
    tickets.done(second)
    assert n_wakes == 2


def test_cancel_is_idempotent_and_deaf_to_what_is_over() -> None:
    tickets = Tickets(lambda: None)
    pull = tickets.open(REMOTE, PrivatePages(), ())
    assert tickets.cancel(pull.ticket)
    assert tickets.cancel(pull.ticket)
    assert pull.cancelled
    tickets.fail(pull, Reason.CANCELLED, "")
    assert not tickets.cancel(pull.ticket)
    tickets.poll(pull.ticket)
    assert not tickets.cancel(pull.ticket)
    assert not tickets.cancel(Ticket(99))


def test_why_outlives_the_ticket_and_stays_bounded() -> None:
    tickets = Tickets(lambda: None)
    pulls = [tickets.open(REMOTE, PrivatePages(), ()) for _ in range(2000)]
    for pull in pulls:
        tickets.fail(pull, Reason.STALE, "page 3 was reused")
        tickets.poll(pull.ticket)
    assert tickets.why(pulls[-1].ticket) == "stale: page 3 was reused"
    assert tickets.why(pulls[0].ticket) == ""
    assert tickets.stats().failed == {Reason.STALE: 2000}


def test_totals_add_up_over_threads() -> None:
    tickets = Tickets(lambda: None)

    def add() -> None:
        for _ in range(2000):
            tickets.count(pulled_bytes=3, retries=1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tickets.stats().pulled_bytes, tickets.stats().retries) == (24_000, 8000)


def test_an_inbox_gives_every_command_to_one_side_or_the_other() -> None:
    inbox = Inbox[int]()
    assert inbox.drain() == []
    assert all(inbox.put(i) for i in range(3))
    assert inbox.drain() == [0, 1, 2]
    assert inbox.put(3)
    inbox.ask_to_end()
    assert inbox.closing
    assert not inbox.put(4)
    assert inbox.close() == [3]
    assert not inbox.put(5)
    inbox.ask_to_end()

"""The lines that `baton status` shows."""

import pytest
from msgspec.structs import replace

from launch.status.screen import duration, lines, milliseconds, table
from tests.unit.launch.status.documents import AT_WORK, STARTING

SHOWN = """\
m  ready  up 3 h 12 min  baton 0.1.0  12 in progress

pool      up  running  waiting  queued tokens  tokens/s  pages held  cached   free  restarts
prefill  0/1        0        0              0         0           0       0      0         0
decode   1/1        8        1         12,000       652       1,200      48  1,600         2

last 60 s      p50       p90      p99  answers   target   met
TTFT       51.2 ms    250 ms   12.5 s       40   200 ms  95 %
TPOT       12.0 ms   20.0 ms  30.0 ms       40  50.0 ms  92 %
ITL        12.0 ms   20.0 ms  40.0 ms      900        -     -
E2E       1,500 ms  3,000 ms   20.0 s       40        -  90 %
handoff     4.0 ms    8.0 ms  20.0 ms      150        -     -

2.6 answers/s  2.5 handoffs/s  640 prompt tokens/s  330 output tokens/s  0.1 failures/s (429: 3)

worker    state       up  heard  running  waiting  tokens/s  busy     pass  pages held  cached   \
free    memory  restarts
decode-0     up  1 min 2 s  0.2 s        8        1       652  88 %  12.3 ms       1,200      48  \
1,600  1,570 MB         2

request  state  prompt  output    prefill    decode     TTFT     TPOT       E2E
r0        stop     256     100  prefill-0  decode-0  50.0 ms  12.0 ms  1,250 ms
r1        stop     256     100  prefill-0  decode-0  50.0 ms  12.0 ms  1,250 ms
"""


def test_a_server_at_work() -> None:
    assert [line.split() for line in lines(AT_WORK, n_requests=2)] == [
        line.split() for line in SHOWN.splitlines()
    ]


def test_a_server_that_starts_shows_what_is_wrong_and_makes_no_number_up() -> None:
    text = "\n".join(lines(STARTING, n_requests=5))
    assert "NOT READY  up 2 s" in text
    assert "prefill-0: exit code 1: no memory" in text
    assert "request" not in text
    (ttft,) = (line for line in text.splitlines() if line.startswith("TTFT"))
    assert ttft.split() == ["TTFT", "-", "-", "-", "0", "-", "-"]


def test_a_gateway_that_is_missing_is_said_to_be() -> None:
    missing = {"gateway-1": "ended with signal 9"}
    head, told, *_ = lines(replace(AT_WORK, gateways=2, gateways_missing=missing), n_requests=0)
    assert head.endswith("12 in progress  2 gateways")
    assert told == "gateway-1 ended with signal 9; what it knows is in none of these figures"


def test_names_do_not_steer_the_terminal() -> None:
    [worker] = [one for one in AT_WORK.workers if one.name == "decode-0"]
    hostile = replace(
        AT_WORK,
        model="m\x1b[2J\nNOT READY ünï",
        workers=(replace(worker, name="x\x9b31m", trouble="\u202eready"),),
    )
    shown = lines(hostile, n_requests=0)
    assert all(line.isprintable() for line in shown)
    assert shown[0].startswith(r"m\x1b[2J\nNOT READY ünï  ready")
    heading, row = (line for line in shown if line.startswith(("worker ", r"x\x9b31m ")))
    assert len(heading) == len(row)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table([["a", "n"], ["long", "1,000"], ["b", ""]]) == ["a         n", "long  1,000", "b"]
    assert table([["a", "n"]]) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3600, "1 h 0 min"), (200_000, "2 d 7 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.00012, "0.1 ms"), (0.0999, "99.9 ms"), (0.1, "100 ms"), (10, "10.0 s")],
)
def test_milliseconds(seconds: float | None, text: str) -> None:
    assert milliseconds(seconds) == text

"""Faults are told before work is done, with the flag, its value and what would help."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from bench import reasons
from bench.server import free_port


@pytest.mark.parametrize(
    ("check", "path", "told"),
    [
        (reasons.must_be_writable, "/dev/null/x.json", "cannot be written: /dev/null is no folder"),
        (reasons.must_be_writable, "/proc", "cannot be written: /proc is a folder"),
        (reasons.must_be_a_writable_folder, "/dev/null", "it is no folder"),
        (reasons.must_be_a_writable_folder, "/dev/null/x", "/dev/null is no folder"),
        (reasons.must_be_readable, "/nope", "there is no such file"),
        (reasons.must_be_readable, "/dev/null/x", "there is no such file"),
        (reasons.must_be_readable, "/proc", "it is a folder"),
        (reasons.must_be_drawable, "/dev/null/x.png", "/dev/null is no folder"),
        (reasons.must_be_drawable, "curve.txt", "must end in .png"),
        (reasons.must_be_drawable, "curve", "must end in .png"),
    ],
)
def test_a_place_that_will_not_do_is_told_with_its_flag(
    check: Callable[[str, Path], None], path: str, told: str
) -> None:
    with pytest.raises(ValueError, match=r"\A--flag ") as raised:
        check("--flag", Path(path))
    assert path in str(raised.value)
    assert told in str(raised.value)


def test_a_place_that_can_be_made_is_none_of_them_and_is_not_made(tmp_path: Path) -> None:
    place = tmp_path / "new" / "newer" / "x.png"
    reasons.must_be_writable("--flag", place)
    reasons.must_be_drawable("--flag", place)
    reasons.must_be_a_writable_folder("--flag", place.parent)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_written_over(tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    place.write_text("kept")
    reasons.must_be_writable("--flag", place)
    reasons.must_be_readable("--flag", place)
    assert place.read_text() == "kept"


def test_what_the_system_says_comes_without_numbers_and_addresses(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nope") as raised:
        (tmp_path / "nope").read_text()
    assert reasons.of(raised.value) == f"{tmp_path / 'nope'}: No such file or directory"
    assert reasons.of(TimeoutError()) == "no answer in time"
    assert reasons.of(KeyError()) == "KeyError"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_there_is_told_with_the_flag_that_names_another(host: str) -> None:
    url = f"http://{host}:{free_port()}"

    async def ask() -> str:
        async with aiohttp.ClientSession() as session:
            try:
                await session.get(url)
            except aiohttp.ClientError as error:
                return reasons.no_server(url, "--base-url", error)
        return "somebody is there"

    assert asyncio.run(ask()) == (
        f"{url}: no server answers there (Connection refused): start one with `baton serve`, or "
        "name another with --base-url"
    )


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", "does not speak HTTP"),  # an alert of TLS
        (b"", "has ended the connection: it has just ended, or does not speak HTTP"),
    ],
)
def test_what_is_no_http_is_told_with_the_other_scheme(answer: bytes, told: str) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def ask() -> tuple[str, str]:
        async with (
            await asyncio.start_server(close, "127.0.0.1", 0) as server,
            aiohttp.ClientSession() as session,
        ):
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(aiohttp.ClientError) as raised:
                await session.get(f"http://{address}")
            return address, reasons.no_server(f"a=http://{address}", "--server", raised.value)

    address, line = asyncio.run(ask())
    assert line == f"a=http://{address} {told}: --server a=https://{address} may be meant"


def test_faults_that_differ_in_numbers_alone_are_told_once() -> None:
    faults = ["late: 12.5 ms", "gone", "late: 300 ms", "late: 7 ms", "gone"]
    assert reasons.grouped(faults) == [("late: 12.5 ms", 3), ("gone", 2)]

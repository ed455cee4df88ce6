import pytest

from common.spellings import parse_bytes, parse_count, parse_cpus, spell_cpus


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4096", 4096),
        ("512MiB", 512 * 2**20),
        ("2G", 2 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("3kb", 3000),
        ("1K", 1024),
        ("7B", 7),
    ],
)
def test_bytes(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1 XB", "1.G"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of bytes such as 512MiB or 2G"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("-1", -1), ("4k", 4000), ("25.6k", 25_600), ("4K", 4096), ("2m", 2 * 10**6)],
)
def test_counts_as_vllm_takes_them(text: str, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.0001k", "1.5K", "4kb", "4 k", "1e3"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|invalid literal"):
        parse_count(text)


def test_cpu_lists() -> None:
    assert parse_cpus("0-3,5,2") == (0, 1, 2, 3, 5)
    with pytest.raises(ValueError, match="the range 3-1 of CPUs runs backwards"):
        parse_cpus("3-1")


@pytest.mark.parametrize("text", ["0", "0-3,5", "1,3,5-7"])
def test_cpus_are_spelt_as_they_are_read(text: str) -> None:
    assert spell_cpus(parse_cpus(text)) == text

"""The servers that isolation is measured with."""

from bench.isolation import setups


def test_all_setups_have_the_same_two_cores() -> None:
    apart, small, large = setups((2, 3), [32, 256])
    assert apart.client_cpus == {2}
    assert apart.flags[-4:] == ("--prefill.cpus", "2", "--decode.cpus", "3")
    assert "--disaggregate always" in " ".join(apart.flags)
    for setup, chunk in ((small, "32"), (large, "256")):
        assert setup.client_cpus == {2, 3}
        flags = dict(zip(setup.flags[::2], setup.flags[1::2], strict=True))
        assert flags["--prefill"] == "0"
        assert flags["--decode.cpus"] == "2,3"
        assert flags["--decode.chunk-tokens"] == chunk
        assert flags["--decode.max-num-batched-tokens"] == chunk

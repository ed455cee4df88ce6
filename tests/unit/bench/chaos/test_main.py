"""What cannot be done is said before a server is started."""

import pytest

from bench.chaos.__main__ import main


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--logs", "/dev/null"], "--logs /dev/null: it is no folder"),
        (["--kinds", "flood"], "--kinds: invalid choice: 'flood'"),
        (["--every", "0"], "--every: 0: must be above 0"),
    ],
)
def test_one_line(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)

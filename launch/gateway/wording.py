"""Counts in what is told to people. Must know nothing of what is counted."""


def count(n: int, one: str, many: str = "") -> str:
    """ "1 item", "2 items". `many`: where it is not `one` with an s."""
    return f"{n} {one if n == 1 else many or f'{one}s'}"

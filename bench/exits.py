"""How the programs under `bench` end: their exit statuses. Imports nothing."""

FAILED_EXIT = 1  # what was measured failed, or a file could not be written in the end
USAGE_EXIT = 2  # whoever started it must ask for something else
INTERRUPTED_EXIT = 130


def ended_by_signal(number: int) -> int:
    """As shells have it."""
    return 128 + number

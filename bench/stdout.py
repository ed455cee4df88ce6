"""Results on standard output, which its reader may close, as `| head` does.

Imports nothing of the engine.
"""

import os
import sys


def show(text: str) -> None:
    """Text and a line's end, at once. Where nobody reads any more, this and all that follows is
    told to nobody; what else there is to be done, such as files, is done."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        tell_nobody()


def tell_nobody() -> None:
    """All that is written from now on, and what is buffered, which goes when the program ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

"""SentencePiece's spelling: U+2581 for a space, `<0x0A>` for a byte that no token covers.

Must know nothing of any tokenizer.
"""

import re

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of(token: str) -> bytes:
    """The bytes that a SentencePiece token stands for."""
    byte = _BYTE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(SPACE, " ").encode()

"""GPT-2's alphabet: one printable character for every byte, so that a vocabulary can be text.

Must know nothing of any tokenizer.
"""


def _alphabet() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 stands for itself, the other 68 bytes follow at 256.

    The rule is that of GPT-2's `encoder.py`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


BYTE_OF = _alphabet()


def bytes_of(token: str) -> bytes:
    """The bytes that a token stands for; its own UTF-8 if it is not spelt in the alphabet."""
    try:
        return bytes([BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()

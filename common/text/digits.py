"""Where a number in JSON has digits enough: nothing else ends one that may have any number of them.

A small model that draws at temperature 1 goes on with digits until its tokens end, since after
twenty digits one more is as likely as the comma.
"""

MAX_DIGITS = 20  # before the point, and after it: a 64-bit integer has 19, a float64 is told by 17
MAX_EXPONENT_DIGITS = 3  # a float64's has as many

_QUOTE, _BACKSLASH = b'"\\'
_DIGITS = frozenset(b"0123456789")
_EXPONENT, _SIGNS = frozenset(b"eE"), frozenset(b"+-")


def begins_with_digit(token: bytes) -> bool:
    return token[:1].isdigit()


class JsonDigits:
    """Reads JSON as it is written. `enough`: the digits that it ends with need not go on."""

    def __init__(self) -> None:
        self._n = 0  # digits that it ends with
        self._in_exponent = False
        self._in_string = False
        self._escaped = False

    def copy(self) -> "JsonDigits":
        copied = JsonDigits()
        copied.__dict__.update(self.__dict__)
        return copied

    @property
    def enough(self) -> bool:
        return self._n >= (MAX_EXPONENT_DIGITS if self._in_exponent else MAX_DIGITS)

    def push(self, text: bytes) -> None:
        for byte in text:
            if self._in_string:
                self._in_string = self._escaped or byte != _QUOTE
                self._escaped = byte == _BACKSLASH and not self._escaped
            elif byte in _DIGITS:
                self._n += 1
            else:
                self._n = 0
                self._in_exponent = byte in _EXPONENT or (self._in_exponent and byte in _SIGNS)
                self._in_string = byte == _QUOTE

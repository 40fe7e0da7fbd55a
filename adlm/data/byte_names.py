"""The bytes behind the names of byte-level tokens."""

import re

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHER_BYTES = sorted(set(range(256)) - set(_PRINTABLE))
_BYTE_LETTERS = {chr(b): b for b in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(_OTHER_BYTES)}
_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


def bytes_of(name: str) -> bytes:
    """GPT-2 names bytes by letters: printable ones by themselves, others by those from number 256 on."""
    known = all(letter in _BYTE_LETTERS for letter in name)
    return bytes(_BYTE_LETTERS[letter] for letter in name) if known else name.encode()


def part_of_character(name: str) -> bytes:
    """The bytes of a token that decodes to no whole characters; sentencepiece writes a byte as <0xC3>."""
    fallback = _FALLBACK.fullmatch(name)
    return bytes.fromhex(fallback[1]) if fallback else bytes_of(name)

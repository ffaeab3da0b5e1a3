"""Documents as units: stretches of text that can be encoded on their own, and by which engine.

A document is cut only where every known split pattern begins a piece, where no characters compose,
and where no accepted added token can lie across; so its tokens are those of its units. Thus a long
document needs no more memory than a short one, and what the numpy engine leaves to the reference
(zero bytes, text of added tokens, unnormalised text) is a few lines and not the whole document.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

from nanoset_core.tokenizers.engines.patterns import NO_SPANS, ContextSpans

Form = Literal["NFC", "NFKC"]
"""Normal forms that engines know."""
UNIT_BYTES = 1 << 19
"""Longer documents are cut into units of little more than this."""
_FALLBACK_BYTES = 1 << 11
_IN_WORDS = frozenset(b" abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_DEEPEST = 50  # of alternatives within alternatives, which Python compiles by recursion

SAFE_CUT = re.compile(
    rb"[A-Za-z0-9](?=[ \t\n\r])"
    rb"|(?:[\xc3-\xdf][\x80-\xbf]|[\xe0\xe4-\xef][\x80-\xbf]{2})(?=[ \t])"
    rb"|(?:\xe3\x81[\x81-\xbf]|\xe3\x82[\xa1-\xbf]|\xe3\x83[\x80-\xba]|[\xe5-\xe8][\x80-\xbf]{2})"
    rb"(?=\xe3\x80\x82|\xef\xbc\x8c)"
)
"""Text may be cut at the end of a match: after a letter or digit before white space, after any
character known to be no white space before a space or tab, and after kana and ideographs before a
full stop or comma of theirs."""


def no_merge_crosses_cuts(boundary_pairs: Iterable[tuple[int, int]]) -> bool:
    """Tell whether no merge goes across a cut, given the code points on both sides of merges."""
    return not any(
        SAFE_CUT.search((chr(left) + chr(right)).encode()) for left, right in boundary_pairs
    )


class AddedTokens:
    """Finds texts that hold an added token."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        """tokens: In UTF-8."""
        self._any = re.compile(any_of(tokens))
        groups = groupby(sorted(tokens), operator.itemgetter(0))
        hints = [_shared(list(group)) for _, group in groups]
        # A byte is looked for much faster than two: one that is seldom in words, as the second of
        # "<|".
        self._hints = [
            (next((byte for byte in hint[::-1] if byte not in _IN_WORDS), hint[-1]), hint)
            for hint in hints
        ]

    def __contains__(self, data: bytes) -> bool:
        """Tell whether a text does."""
        return (
            any(byte in data and hint in data for byte, hint in self._hints)
            and self._any.search(data) is not None
        )

    def find(self, texts: Sequence[bytes]) -> list[int]:
        """Return the numbers of the texts that do, in order."""
        may = [
            number
            for byte, hint in self._hints
            for number, data in enumerate(texts)
            if byte in data and hint in data
        ]
        return [number for number in sorted({*may}) if self._any.search(texts[number])]


class FallbackText:
    """Finds text that the numpy engine leaves to the reference: `text in fallback_text`."""

    def __init__(
        self,
        added_tokens: Sequence[bytes],
        forbidden_bytes: bytes,
        context_spans: ContextSpans = NO_SPANS,
    ) -> None:
        """Take the texts of added tokens; bytes without a token, and zero; hard text of a pattern."""
        self._added = AddedTokens(added_tokens)
        self._allowed = bytes(set(range(256)) - set(forbidden_bytes))
        self._forbidden = [bytes([byte]) for byte in forbidden_bytes]
        self._context_spans = context_spans

    def __contains__(self, data: bytes) -> bool:
        """Tell whether a UTF-8 text holds forbidden bytes, an added token, or context-dependent
        spans.
        """
        return self._forbids(data) or data in self._context_spans or data in self._added

    def _forbids(self, data: bytes) -> bool:
        if len(self._forbidden) <= 2:
            return any(byte in data for byte in self._forbidden)
        return bool(data.translate(None, self._allowed))


def any_of(strings: Collection[bytes], depth: int = _DEEPEST) -> bytes:
    """Return a regular expression that is somewhere in a text if one of the strings is; b"(?!)" for
    none.

    It is a trie: beginnings that strings share come once, so that looking at a place takes a few
    steps and not one for each string.
    """
    if b"" in strings or not strings:
        return b"" if strings else b"(?!)"
    if not depth:
        return b"|".join(map(re.escape, strings))
    branches = []
    for _, members in groupby(sorted(strings), operator.itemgetter(0)):
        group = list(members)
        shared = _shared(group)
        rest = any_of({string[len(shared) :] for string in group}, depth - 1)
        branches.append(re.escape(shared) + b"(?:%b)" % rest)
    return b"|".join(branches)


def _shared(strings: list[bytes]) -> bytes:
    """Return what all strings begin with."""
    first, last = min(strings), max(strings)
    return first[
        : next(
            (place for place, byte in enumerate(first) if last[place : place + 1] != bytes([byte])),
            None,
        )
    ]


def cut(text: bytes, size: int) -> Iterator[bytes]:
    """Yield pieces of a text of about `size` bytes, or more where it cannot be cut safely."""
    begin = 0
    while len(text) - begin > size:
        match = SAFE_CUT.search(text, begin + size)
        if match is None:
            break
        yield text[begin : match.end()]
        begin = match.end()
    yield text[begin:]


def partition_units(text: bytes, fallback_text: FallbackText) -> Iterator[tuple[bytes, bool]]:
    """Yield (piece, whether it is for the reference) of a text that holds something for the
    reference.
    """
    run: list[bytes] = []
    size, kind = 0, False
    for piece in cut(text, _FALLBACK_BYTES):
        is_fallback = piece in fallback_text
        if run and (is_fallback != kind or size >= UNIT_BYTES):
            yield b"".join(run), kind
            run, size = [], 0
        run.append(piece)
        size += len(piece)
        kind = is_fallback
    yield b"".join(run), kind

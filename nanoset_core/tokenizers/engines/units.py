"""Divide documents into units: stretches of text that can be encoded on their own.

A document is cut only where every known split pattern starts a piece, where no characters compose,
and where no accepted added token can lie across the cut. So the tokens of a document are those of
its units. This has two uses:

- A long document takes no more memory than a short one.
- Some text is left to the reference engine: zero bytes, added tokens, text whose split depends on
  what precedes it. This is then a few lines, and not the whole document.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from nanoset_core.tokenizers.engines.patterns import NO_SPANS, ContextSpans

Form = Literal["NFC", "NFKC"]
"""Normal forms that engines know."""
UNIT_BYTES = 1 << 19
"""Longer documents are cut into units of slightly more than this."""
_FALLBACK_BYTES = 1 << 11
"""Stretches of about this size go to the reference, if they contain text for it."""
_COMMON_BYTES = frozenset(b" abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_MAX_DEPTH = 50  # of groups within groups: Python compiles these by recursion

SAFE_CUT = re.compile(
    # an ASCII letter or digit, before white space
    rb"[A-Za-z0-9](?=[ \t\n\r])"
    # a longer character that is no white space for certain, before a space or tab
    rb"|(?:[\xc3-\xdf][\x80-\xbf]|[\xe0\xe4-\xef][\x80-\xbf]{2})(?=[ \t])"
    # hiragana, katakana or an ideograph, before 。 or ，
    rb"|(?:\xe3\x81[\x81-\xbf]|\xe3\x82[\xa1-\xbf]|\xe3\x83[\x80-\xba]|[\xe5-\xe8][\x80-\xbf]{2})"
    rb"(?=\xe3\x80\x82|\xef\xbc\x8c)"
)
"""Text in UTF-8 may be cut at the end of a match."""


def no_merge_crosses_cuts(boundary_pairs: Iterable[tuple[int, int]]) -> bool:
    """Return whether a tokenizer has no tokens across the places where long texts are cut.

    A long text is cut into pieces before it is encoded, to save memory. The regular expression
    SAFE_CUT finds places for that by the two characters around them: a letter and a space, for
    example. A token across such a place would be lost. Tokens are made by merging two smaller ones,
    so the characters that meet in a merge are all that can be inside of a token:

        merge           characters that meet
        "th" "e"        h e                     SAFE_CUT does not cut between these
        "a" " b"        a and a space           SAFE_CUT cuts here, so the result is False

    Args:
        boundary_pairs: The two characters that meet in each merge, as code points.
    """
    for left, right in boundary_pairs:
        neighbours = chr(left) + chr(right)  # "a "
        would_be_cut = SAFE_CUT.search(neighbours.encode()) is not None
        if would_be_cut:
            return False
    return True


class _Prefix(NamedTuple):
    """What several tokens begin with: "<|" for "<|endoftext|>" and "<|pad|>"."""

    text: bytes
    """In UTF-8."""
    rarest_byte: int
    """The byte of it that the fewest texts contain. A search for it is much faster than one for
    several bytes.
    """

    def occurs_in(self, data: bytes) -> bool:
        """Return whether a text contains the prefix, without which it contains none of the tokens.

        Args:
            data: The text in UTF-8.
        """
        return self.rarest_byte in data and self.text in data


class AddedTokens:
    """Finds texts that contain an added token."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        """Prepare to find texts that contain one of some special tokens, such as "<|endoftext|>".

        They are searched by a regular expression, which is slow. Most texts lack even what the
        tokens begin with, such as "<|", so these beginnings are looked for first.

        Args:
            tokens: In UTF-8, none of them empty.
        """
        self._pattern = re.compile(any_of(tokens))
        self._prefixes = []
        for group in _groups_by_first_byte(tokens):
            prefix = _common_prefix(group)
            self._prefixes.append(_Prefix(prefix, _rarest_byte(prefix)))

    def occur_in(self, data: bytes) -> bool:
        """Return whether a text contains an added token, such as `<|endoftext|>`.

        Args:
            data: The text in UTF-8.
        """
        # Most texts contain none of the prefixes, so that the slow pattern is not needed.
        has_prefix = any(prefix.occurs_in(data) for prefix in self._prefixes)
        return has_prefix and self._pattern.search(data) is not None

    def find(self, texts: Sequence[bytes]) -> list[int]:
        """Return which of some texts contain a special token, such as `<|endoftext|>`.

        Args:
            texts: The texts in UTF-8.

        Returns:
            Their indices, ascending.
        """
        # Few texts contain even what the tokens begin with, such as "<|". So these beginnings are
        # looked for first; and before that, a single byte of each, "|", which is faster still.
        candidates = set()
        for prefix, rarest_byte in self._prefixes:
            for index, data in enumerate(texts):
                if rarest_byte in data and prefix in data:
                    candidates.add(index)

        # The regular expression finds whole tokens, but is slow.
        return [index for index in sorted(candidates) if self._pattern.search(texts[index])]


class FallbackText:
    """Finds text that the numpy engine leaves to the reference engine, the tokenizers library."""

    def __init__(
        self,
        added_tokens: Sequence[bytes],
        forbidden_bytes: bytes,
        context_spans: ContextSpans = NO_SPANS,
    ) -> None:
        """Prepare to find text that our fast tokenizer in numpy leaves to Hugging Face's library.

        Args:
            added_tokens: Special tokens such as "<|endoftext|>", in UTF-8: text with these is left.
            forbidden_bytes: Bytes that numpy cannot encode: zero, and those without a token.
            context_spans: Recognizes rare text that numpy cannot cut into words.
        """
        self._added_tokens = AddedTokens(added_tokens)
        self._forbidden = [bytes([byte]) for byte in forbidden_bytes]
        self._allowed = bytes(set(range(256)) - set(forbidden_bytes))
        self._context_spans = context_spans

    def occurs_in(self, data: bytes) -> bool:
        """Return whether a text contains something that only Hugging Face's library can encode.

        This project has a faster tokenizer in numpy, but it cannot encode text with one of these:

        - a byte for which there is no token, or the byte zero, which it uses itself;
        - a special token such as `<|endoftext|>`;
        - rare sequences of characters that cannot be split without looking at all text before them.

        Args:
            data: The text in UTF-8.

        Returns:
            False is certain. In the third case, True may be wrong, which costs time only.
        """
        return (
            self._has_forbidden_byte(data)
            or self._context_spans.occurs_in(data)
            or self._added_tokens.occur_in(data)
        )

    def _has_forbidden_byte(self, data: bytes) -> bool:
        """Return whether a text contains a byte that the numpy engine cannot encode."""
        # A search for each byte is faster if there are few: most vocabularies lack zero only.
        if len(self._forbidden) <= 2:
            return any(byte in data for byte in self._forbidden)
        return bool(data.translate(None, self._allowed))


def any_of(strings: Collection[bytes], depth: int = _MAX_DEPTH) -> bytes:
    """Return a regular expression that matches if a text contains one of some strings.

    The obvious expression, `<pad>|<eos>`, is slow for hundreds of strings. So what several strings
    begin with is written only once:

        "<pad>", "<eos>"     <(?:eos>|pad>)

    (The expression also has empty groups, which match nothing: <(?:eos>(?:)|pad>(?:)).)

    Args:
        strings: The strings. If there are none, the expression matches nothing.
        depth: Most levels of groups within groups, since regular expressions with very deep groups
            cannot be compiled.
    """
    if not strings:
        return b"(?!)"  # matches nothing
    if b"" in strings:  # any text contains it, so the others need not be looked for
        return b""
    if depth == 0:
        return b"|".join(map(re.escape, strings))

    branches = []
    for group in _groups_by_first_byte(strings):  # those that begin with "<", for example
        prefix = _common_prefix(group)  # "<"
        rests = {string[len(prefix) :] for string in group}  # "pad>" and "eos>"
        branches.append(re.escape(prefix) + b"(?:" + any_of(rests, depth - 1) + b")")
    return b"|".join(branches)


def _groups_by_first_byte(strings: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the strings that begin with the same byte, sorted, in the order of these bytes."""
    for _, group in groupby(sorted(strings), lambda string: string[0]):
        yield list(group)


def _common_prefix(strings: list[bytes]) -> bytes:
    """Return what all strings begin with."""
    # What the first and the last string in sorted order share, all others share.
    first = min(strings)
    last = max(strings)
    length = 0
    while length < len(first) and first[length] == last[length]:
        length += 1
    return first[:length]


def _rarest_byte(prefix: bytes) -> int:
    """Return a byte of a prefix that few texts contain: the last one that is in no word.

    In "<|", that is the second.
    """
    for byte in reversed(prefix):
        if byte not in _COMMON_BYTES:
            return byte
    return prefix[-1]


def cut(text: bytes, size: int) -> Iterator[bytes]:
    """Cut a long text into pieces of about `size` bytes that can be encoded one by one.

    The text is only cut where that gives the same tokens as encoding it as a whole, such as before
    the space in "word word". So a piece may be longer.

    Args:
        text: The text in UTF-8.
        size: Least number of bytes of a piece, except the last one.
    """
    start = 0  # of the next piece
    while len(text) - start > size:
        # The first place at which the text may be cut, once the piece is long enough.
        safe_place = SAFE_CUT.search(text, start + size)
        if safe_place is None:
            break
        stop = safe_place.end()
        yield text[start:stop]
        start = stop
    yield text[start:]


def partition_units(text: bytes, fallback_text: FallbackText) -> Iterator[tuple[bytes, bool]]:
    """Divide a text into pieces for a fast tokenizer, and pieces that only a slow one can encode.

    Some text, such as special tokens, is for the slow one. So the text is cut into small pieces,
    and neighbours of the same kind are joined:

        small pieces    fast  fast  slow  fast  fast  fast
        result          fast        slow  fast

    Args:
        text: The text in UTF-8.
        fallback_text: Recognizes text for the slow tokenizer.

    Yields:
        (piece, whether it is for the slow one). Pieces have up to about UNIT_BYTES (512 KiB).
    """
    joined: list[bytes] = []  # neighbours of one kind
    joined_bytes = 0
    is_joined_slow = False  # their kind
    for piece in cut(text, _FALLBACK_BYTES):
        is_slow = fallback_text.occurs_in(piece)
        is_other_kind = is_slow != is_joined_slow
        if joined and (is_other_kind or joined_bytes >= UNIT_BYTES):
            yield b"".join(joined), is_joined_slow
            joined = []
            joined_bytes = 0
        joined.append(piece)
        joined_bytes += len(piece)
        is_joined_slow = is_slow
    yield b"".join(joined), is_joined_slow

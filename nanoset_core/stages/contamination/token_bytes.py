"""Find the bytes that each token of a tokenizer decodes to, for any kind of vocabulary.

Vocabularies write the token for " the" in different ways: `Ġthe` (byte-level BPE), `▁the`
(SentencePiece) or `the` (WordPiece). The bytes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from nanoset_core.stages.contamination.words import WordVocabulary
from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer
from nanoset_core.tokenizers.files import TokenizerPath, define
from nanoset_core.tokenizers.files.tokenizer_json import component_types, token_bytes

_SENTENCEPIECE_SPACE = "▁"
"""SentencePiece writes this character for a space."""
_BYTE_TOKEN_LENGTH = len("<0x41>")
"""Length of the tokens by which SentencePiece writes single bytes."""
_SEPARATOR = b" "
"""The bytes of tokens without text, such as special tokens: they separate words."""


def word_vocabulary(file: TokenizerPath) -> WordVocabulary:
    """Return which words, or parts of words, each token of a tokenizer has.

    For example, the token " play" begins the word "play", and "ing" continues a word. By this,
    words are found in documents that are stored as tokens.

    Args:
        file: The tokenizer's file or folder. Its special tokens, such as the end of a document,
            separate words.
    """
    return WordVocabulary.of(_bytes_by_id(file))


def _bytes_by_id(file: TokenizerPath) -> list[bytes]:
    """Return the bytes that each token of a tokenizer stands for, by the number (id) of the token.

        id    token in the vocabulary    bytes
        0     <|endoftext|>              b" "       a special token: it only separates words
        1     Ġthe                       b" the"

    Args:
        file: The tokenizer's file or folder.

    Returns:
        The bytes of id 0, 1, … If an id has no token, it gets b" " as well.
    """
    tokenizer = load_tokenizer(file)
    notation = _Notation.of(file)
    added_tokens = tokenizer.get_added_tokens_decoder()

    bytes_by_id: dict[int, bytes] = {}
    for text, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        added_token = added_tokens.get(token_id)
        if added_token is None:
            bytes_by_id[token_id] = notation.decode(text)
        else:
            bytes_by_id[token_id] = _bytes_of_added(added_token)

    # Some vocabularies have gaps between the ids.
    ids = range(max(bytes_by_id) + 1)
    return [bytes_by_id.get(token_id, _SEPARATOR) for token_id in ids]


def _bytes_of_added(token: Any) -> bytes:
    """Return the bytes of a token that was added to a vocabulary, and a separator if it is special.

    Args:
        token: The `tokenizers.AddedToken`. The vocabulary's notation does not apply to it.
    """
    if token.special:
        return _SEPARATOR
    content: str = token.content
    return content.encode()


@dataclass(frozen=True, slots=True)
class _Notation:
    """How a vocabulary writes tokens: byte-level BPE, WordPiece or SentencePiece."""

    is_byte_level: bool
    """Whether it writes a character for each byte, as byte-level BPE does."""
    continuation_prefix: str | None
    """What WordPiece puts before tokens that continue a word, usually `##`."""

    @staticmethod
    def of(file: TokenizerPath) -> _Notation:
        """Find out in which of three ways a tokenizer writes the tokens of its vocabulary.

        For example, the word "the" and the ending "ing" are written

            byte-level BPE    Ġthe    ing      Ġ stands for a space     is_byte_level=True
            WordPiece         the     ##ing    ## continues a word      continuation_prefix="##"
            SentencePiece     ▁the    ing      ▁ stands for a space     neither of them

        Args:
            file: The tokenizer's file or folder.
        """
        # Read the definition of the tokenizer, in the format of Hugging Face's tokenizer.json.
        definition = orjson.loads(define(file).json())

        # WordPiece: {"model": {"type": "WordPiece", "continuing_subword_prefix": "##"}}
        model = definition["model"]
        prefix = None
        if model.get("type") == "WordPiece":
            prefix = model.get("continuing_subword_prefix")

        # Byte-level BPE: a step {"type": "ByteLevel"} before the model or after it.
        step_types = component_types(definition.get("pre_tokenizer"))
        step_types |= component_types(definition.get("decoder"))
        return _Notation(is_byte_level="ByteLevel" in step_types, continuation_prefix=prefix)

    def decode(self, token: str) -> bytes:
        """Return the bytes that a token stands for, given how it is written in the vocabulary.

            Ġthe     b" the"    byte-level BPE, which writes Ġ for a space
            ##ing    b"ing"     WordPiece, which writes ## before the rest of a word
            ▁the     b" the"    SentencePiece, which writes ▁ for a space

        Args:
            token: The token as the vocabulary writes it.
        """
        if self.is_byte_level:
            return _decode_byte_level(token)
        if self.continuation_prefix is not None:
            return _decode_wordpiece(token, self.continuation_prefix)
        return _decode_sentencepiece(token)


def _decode_byte_level(token: str) -> bytes:
    """Return the bytes of a token of byte-level BPE, which writes a character for each byte."""
    decoded = token_bytes(token)
    if decoded is None:  # a token with characters that stand for no byte
        return token.encode()
    return decoded


def _decode_wordpiece(token: str, continuation_prefix: str) -> bytes:
    """Return the bytes of a token of WordPiece, with a space before it if it begins a word.

    Args:
        token: The token. It continues a word if it starts with the prefix.
        continuation_prefix: The prefix, usually `##`.
    """
    if token.startswith(continuation_prefix):
        return token.removeprefix(continuation_prefix).encode()
    return f" {token}".encode()


def _decode_sentencepiece(token: str) -> bytes:
    """Return the bytes of a token of SentencePiece: `▁the` is " the", and `<0x41>` one byte."""
    if len(token) == _BYTE_TOKEN_LENGTH and token.startswith("<0x"):
        return bytes.fromhex(token[3:5])
    return token.replace(_SENTENCEPIECE_SPACE, " ").encode()

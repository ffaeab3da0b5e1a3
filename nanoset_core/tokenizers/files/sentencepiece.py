"""Read SentencePiece models, and convert them to a tokenizer.json.

The `sentencepiece` package stays the reference for tokens. The tokenizer.json serves to decode them
and to try faster engines, which must give the same tokens as the package. The package is optional,
and the facts of a model (its vocabulary size, its special tokens) must be known without it, so the
file is parsed here.

A model is a protobuf message, `ModelProto` of sentencepiece_model.proto. Of its fields, these
matter:

    1  pieces, one message each: 1 text, 2 score, 3 type
    2  settings of the trainer: 3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback,
       47 eos_piece
    3  settings of the normalizer: 2 precompiled_charsmap, 3 add_dummy_prefix,
       4 remove_extra_whitespaces, 5 escape_whitespaces
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files.source import TokenizerFile
from nanoset_core.tokenizers.files.tokenizer_json import (
    NEVER_IN_TEXT,
    ConvertedTokenizer,
    added_token,
    bpe_model,
    build_tokenizer_json,
    pairs_that_make,
)

SPACE_SIGN = "▁"
"""The character (U+2581) as which SentencePiece writes a space."""

_EXPECTED = "a model as sentencepiece's trainer writes it"
_REMEDY = "fetch the file again, completely, or use a tokenizer.json"


class _PieceType(IntEnum):
    """Field 3 of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


class _ModelType(IntEnum):
    """Values of `_TrainerField.MODEL_TYPE`."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHARACTER = 4


class _TrainerField(IntEnum):
    """Numbers of settings in `TrainerSpec` of sentencepiece_model.proto."""

    MODEL_TYPE = 3
    TREAT_WHITESPACE_AS_SUFFIX = 24
    BYTE_FALLBACK = 35
    EOS_PIECE = 47


class _NormalizerField(IntEnum):
    """Numbers of settings in `NormalizerSpec` of sentencepiece_model.proto."""

    PRECOMPILED_CHARSMAP = 2
    ADD_DUMMY_PREFIX = 3
    REMOVE_EXTRA_WHITESPACES = 4
    ESCAPE_WHITESPACES = 5


class _ModelPiece(NamedTuple):
    """One entry of the vocabulary; its position is its id."""

    text: str
    score: float
    type: int
    """A `_PieceType`, or the number of a type that is not needed here, such as a single byte."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The parts of a model that decide the tokens of a text."""

    pieces: list[_ModelPiece]
    model_type: int
    byte_fallback: bool
    """Whether characters without a piece are written as tokens of their bytes."""
    has_space_suffix: bool
    """Whether a space belongs to the word before it rather than to the next one."""
    eos_piece: str
    charsmap: bytes
    """Compiled rules of the normalizer; empty if it changes no characters."""
    add_dummy_prefix: bool
    """Whether a space is put in front of a text."""
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    """Whether spaces are written as `SPACE_SIGN`."""

    def texts_of(self, *types: _PieceType) -> list[str]:
        """Return the texts of all pieces of some types, in the order of their ids."""
        return [piece.text for piece in self.pieces if piece.type in types]


def read_sentencepiece_model(source: TokenizerFile) -> ConvertedTokenizer:
    """Read a SentencePiece model, and convert it to a tokenizer.json, Hugging Face's format.

    Args:
        source: The file of the model, with the user's settings.

    Raises:
        FormatError: The file is damaged, or is no SentencePiece model.
        ConfigError: Special tokens are configured, but nothing adds them to the model.
    """
    _check_special_tokens(source)
    model = _parse(read_regular(source.path), source)
    ids = _piece_ids(model, source)  # text of each piece (entry of the vocabulary) → id
    special_texts = model.texts_of(_PieceType.UNKNOWN, _PieceType.CONTROL)
    special_tokens = {text: ids[text] for text in special_texts}
    legacy_tokens = _legacy_tokens(source, model, ids)

    # The ids of the pieces are 0, 1 and so on. Those of added tokens may be larger.
    largest_id = max([len(ids) - 1, *legacy_tokens.values()])
    return ConvertedTokenizer(
        json=_tokenizer_json(model, ids, special_texts, legacy_tokens),
        meaning={"legacy": source.legacy, "special_tokens": list(legacy_tokens.items())},
        vocab_size=largest_id + 1,
        max_id=largest_id,
        special_tokens={**special_tokens, **legacy_tokens},
        eod=_end_of_document(model),
    )


def _check_special_tokens(source: TokenizerFile) -> None:
    """Check that no special tokens are configured, unless something adds them to the model.

    A model contains its special tokens, such as `<s>`. Only a class of Megatron-LM around the
    model, called the legacy wrapper, can add others.

    Args:
        source: The file of the model, with the user's settings.

    Raises:
        ConfigError: There are special tokens, but `legacy` is not set.
    """
    if not source.special_tokens or source.legacy:
        return
    raise ConfigError(
        "a SentencePiece model holds its special tokens itself",
        where=source,
        found=f"tokenizer.special_tokens: {' '.join(source.special_tokens[:12])}",
        remedy="leave them out, or set legacy: true (--tokenizer-sentencepiece-legacy), "
        "with which Megatron-LM adds tokens to the model's",
    )


def _end_of_document(model: _Model) -> str | None:
    """Return the end-of-sentence piece, such as `</s>`; None if it is an ordinary piece."""
    if model.eos_piece in model.texts_of(_PieceType.CONTROL):
        return model.eos_piece
    return None


def _piece_ids(model: _Model, source: TokenizerFile) -> dict[str, int]:
    """Return the ids of a SentencePiece model's pieces (tokens): their positions in the model.

    Args:
        model: The model.
        source: The file of the model, for the error.

    Returns:
        Text of the piece → id, such as {"<unk>": 0, "<s>": 1, "▁the": 2}.

    Raises:
        FormatError: The model has no pieces, or two with the same text.
    """
    ids = {piece.text: token_id for token_id, piece in enumerate(model.pieces)}
    if not ids or len(ids) != len(model.pieces):
        raise FormatError(
            "the model has no pieces, or two alike",
            where=source,
            found=f"{len(ids):,} different pieces",
            expected=_EXPECTED,
            remedy=_REMEDY,
        )
    return ids


def _legacy_tokens(source: TokenizerFile, model: _Model, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of the special tokens that a user adds to a SentencePiece model.

    A token with the text of a piece (an entry of the vocabulary) has the id of the piece. Others
    get the next ids after the pieces. For 32,000 pieces, {"<s>": 1, "<sep>": 32000}.

    Megatron-LM, which adds such tokens, takes any text that the model encodes as unknown for a new
    token. So "<unk>", the unknown piece itself, also gets a new id.

    Args:
        source: The configured special tokens, `tokenizer.special_tokens`.
        model: The SentencePiece model.
        ids: Text of each piece → its id.

    Returns:
        Name of each special token → its id.
    """
    token_ids = {}
    next_id = len(ids)
    unknown_texts = model.texts_of(_PieceType.UNKNOWN)
    unique_names = dict.fromkeys(source.special_tokens or ())  # in the order of the configuration
    for name in unique_names:
        is_known_piece = name in ids and name not in unknown_texts
        if is_known_piece:
            token_ids[name] = ids[name]
        else:
            token_ids[name] = next_id
            next_id += 1
    return token_ids


# Conversion


def _tokenizer_json(
    model: _Model,
    ids: Mapping[str, int],
    special_texts: list[str],
    legacy_tokens: Mapping[str, int],
) -> bytes:
    """Convert a SentencePiece model to a tokenizer.json, Hugging Face's format for tokenizers.

    Both say how a text becomes tokens. A tokenizer.json has a component for each step:

        added_tokens    finds special tokens such as "<s>" in the text, which are never split
        normalizer      marks where words start:        "the cat"  →  "▁the▁cat"
        model           splits the text into tokens:    "▁the▁cat"  →  "▁the", "▁cat"
        decoder         turns tokens back into text:    "▁the", "▁cat"  →  "the cat"

    Args:
        model: The SentencePiece model.
        ids: Its vocabulary: text of each piece → id, such as {"<s>": 0, "▁the": 1, "▁cat": 2}.
        special_texts: The special tokens among them, such as ["<s>"].
        legacy_tokens: Special tokens that the user has configured: name → id. Some may be in the
            vocabulary already.
    """
    new_tokens = _tokens_not_in_vocabulary(legacy_tokens, ids)
    return build_tokenizer_json(
        added_tokens=_added_tokens(model, ids, special_texts, new_tokens),
        normalizer=_normalizer(model),
        decoder=_decoder(model),
        model=_model_component(model, {**ids, **new_tokens}),
    )


def _tokens_not_in_vocabulary(
    legacy_tokens: Mapping[str, int], ids: Mapping[str, int]
) -> dict[str, int]:
    """Return those of some configured special tokens that a SentencePiece model does not have.

    The tokens of a model are called pieces. Their ids are 0, 1 and so on, without gaps, so an id
    that is too large for a piece is that of a new token, whatever its name is:

        pieces of the model   {"<unk>": 0, "<s>": 1, "a": 2}
        configured tokens     {"<s>": 1, "<sep>": 3, "<unk>": 4}
        result                {"<sep>": 3, "<unk>" and a mark: 4}

    The mark is an invisible character. Without it, the token 4 would have the text of the piece 0,
    and no text can be in a vocabulary twice.

    Args:
        legacy_tokens: The configured tokens: name → id.
        ids: Text of each piece → its id.

    Returns:
        Text → id of the new tokens. The text is the name, or the name and the mark.
    """
    new_tokens = {}
    for name, token_id in legacy_tokens.items():
        is_id_of_piece = token_id < len(ids)
        if is_id_of_piece:
            continue
        text = name
        if name in ids:
            text = name + NEVER_IN_TEXT
        new_tokens[text] = token_id
    return new_tokens


def _added_tokens(
    model: _Model,
    ids: Mapping[str, int],
    special_texts: Iterable[str],
    new_tokens: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return the tokens that are found in a text before it is split, for a tokenizer.json.

    These are the special tokens, such as <s>, and ordinary text that the user of SentencePiece has
    defined to be a token.

    Args:
        model: The SentencePiece model.
        ids: Text of each piece of the vocabulary → its id.
        special_texts: Pieces that are special tokens.
        new_tokens: Special tokens that are not pieces: text → id.

    Returns:
        Such as [{"id": 1, "content": "<s>", "special": True, …}, …].
    """
    tokens = []
    for text in special_texts:
        tokens.append(added_token(text, ids[text], special=True))
    for text in model.texts_of(_PieceType.USER_DEFINED):
        tokens.append(added_token(text, ids[text], special=False))
    for text, token_id in new_tokens.items():
        tokens.append(added_token(text, token_id, special=True))
    return tokens


def _normalizer(model: _Model) -> dict[str, Any]:
    """Return the part of a tokenizer.json that says how a text is changed before it is split.

    It does what the library sentencepiece does, in these steps, of which a model may lack some:

        Precompiled      replaces characters by those of the model's table    "Ａ" → "A"
        Strip, Replace   remove superfluous spaces                            " a  b" → "a b"
        Prepend          puts a ▁ before the text                             "a b" → "▁a b"
        Replace          writes spaces as ▁                                   "▁a b" → "▁a▁b"

    Args:
        model: The parsed SentencePiece model.
    """
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE_SIGN})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SIGN})

    if len(steps) == 1:
        return steps[0]
    return {"type": "Sequence", "normalizers": steps}


def _decoder(model: _Model) -> dict[str, Any]:
    """Return the part of a tokenizer.json that says how tokens become text again.

        tokens          "▁a", "▁b", "<0x21>"
        Replace         " a", " b", "<0x21>"
        ByteFallback    " a", " b", "!"         (tokens of single bytes)
        Fuse            " a b!"
        Strip           "a b!"                  (if the model puts a space before a text)

    Args:
        model: The parsed SentencePiece model.
    """
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_SIGN}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _model_component(model: _Model, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Return the part of a tokenizer.json that says how words are split into tokens.

    There are two kinds:

        BPE        merges characters to tokens in the order of a list, "t h", "th e", …
        Unigram    chooses the tokens with the best sum of scores, [["▁the", -3.2], …]

    The result is a BPE if the SentencePiece model can be expressed by merges. Otherwise it is a
    unigram model, which is only used to turn tokens into text: it has the same ids, but may encode
    differently.

    Args:
        model: The SentencePiece model.
        vocabulary: Token → id, in the order of the ids: the pieces of the model first, then special
            tokens that are not pieces.
    """
    # The piece that stands for characters without a piece, such as <unk>. A model has one of them.
    unknown_texts = model.texts_of(_PieceType.UNKNOWN)
    unknown = unknown_texts[0] if unknown_texts else None

    merges = _merges(model)
    if merges is not None:
        return bpe_model(
            vocabulary,
            merges,
            unk_token=unknown,
            # As sentencepiece does, write several such characters in a row as one unknown token.
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )

    # A unigram model lists each token with its score, in the order of the ids. Tokens that are not
    # pieces have no score.
    entries = [[piece.text, piece.score] for piece in model.pieces]
    n_pieces = len(entries)
    for text in list(vocabulary)[n_pieces:]:
        entries.append([text, 0.0])
    unknown_id = None if unknown is None else vocabulary[unknown]
    return {
        "type": "Unigram",
        "unk_id": unknown_id,
        "vocab": entries,
        "byte_fallback": model.byte_fallback,
    }


def _merges(model: _Model) -> list[tuple[str, str]] | None:
    """Return the merges of a model: every pair of pieces that makes a third piece.

    SentencePiece always makes the piece with the best score. A tokenizer.json has no scores: it
    merges the pair that is listed first. So the pairs are sorted by the scores of what they make:

        pieces     "a"  "b"  "c"  "ab" (score -1)  "bc" (score 0)  "abc" (score -2)
        merges     b c  (score 0),  a b  (score -1),  a bc  and  ab c  (score -2)

    Args:
        model: The parsed model.

    Returns:
        The pairs in order; None if a list of merges cannot express the model.
    """
    merged_pieces = [
        piece for piece in model.pieces if piece.type == _PieceType.NORMAL and len(piece.text) > 1
    ]
    if not _is_plain_bpe(model) or _have_equal_scores(merged_pieces):
        return None

    mergeable_ids = _mergeable_ids(model)
    merges: list[tuple[str, str]] = []
    for piece in sorted(merged_pieces, key=lambda piece: -piece.score):
        # Several pairs may make the same piece. They are in the order of their ids.
        merges += pairs_that_make(piece.text, mergeable_ids)
    return merges


def _is_plain_bpe(model: _Model) -> bool:
    """Return whether a model is a BPE whose settings all have a counterpart in a tokenizer.json."""
    return (
        model.model_type == _ModelType.BPE
        and model.escape_whitespaces
        and not model.has_space_suffix
        and not model.texts_of(_PieceType.UNUSED)
    )


def _have_equal_scores(pieces: Iterable[_ModelPiece]) -> bool:
    """Return whether two pieces of a SentencePiece model have the same score.

    A piece's score says how early it is merged. If two scores are equal, SentencePiece first makes
    the piece that comes first in the text. The list of merges of a tokenizer.json cannot express
    that.

    Args:
        pieces: The pieces that merges make.
    """
    scores = []
    for piece in pieces:
        # Pieces such as ▁▁▁ (spaces) often have equal scores, which rarely matters. If it does, it
        # is noticed when tokens are compared with those of SentencePiece.
        is_only_spaces = piece.text.strip(SPACE_SIGN) == ""
        if not is_only_spaces:
            scores.append(piece.score)
    return len(set(scores)) < len(scores)


def _mergeable_ids(model: _Model) -> dict[str, int]:
    """Return the text → id of the pieces that merges may use."""
    mergeable_ids = {}
    for token_id, piece in enumerate(model.pieces):
        if piece.type in (_PieceType.NORMAL, _PieceType.USER_DEFINED):
            mergeable_ids[piece.text] = token_id
    return mergeable_ids


# Parsing

_PIECES_FIELD = 1
_TRAINER_FIELD = 2
_NORMALIZER_FIELD = 3


def _parse(content: bytes, source: TokenizerFile) -> _Model:
    """Read a SentencePiece model from the bytes of its file.

    The file is a protobuf message, a list of numbered fields. These are of interest:

        field 1    a piece of the vocabulary; there is such a field for each piece
        field 2    settings of the training, such as the kind of model
        field 3    settings of the normalizer, which changes a text first

    The settings are messages themselves: number of a setting → value.

    Args:
        content: The bytes of the file.
        source: The file, for errors.

    Raises:
        FormatError: The message is damaged, or is something else.
    """
    pieces: list[_ModelPiece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        # The value of a field is a message itself: the settings of the training, for example.
        for number, value in _fields(content):
            if number == _PIECES_FIELD:
                pieces.append(_parse_piece(value))
            elif number == _TRAINER_FIELD:
                trainer = dict(_fields(value))
            elif number == _NORMALIZER_FIELD:
                normalizer = dict(_fields(value))
        model = _build_model(pieces, trainer, normalizer)
    except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise FormatError(
            "this is no SentencePiece model, or it is cut or damaged",
            where=source,
            found=f"{error}, after {len(pieces):,} pieces",
            expected=_EXPECTED,
            remedy=_REMEDY,
        ) from error

    _check_type(model, source)
    return model


def _check_type(model: _Model, source: TokenizerFile) -> None:
    """Check that a model is of a known type, such as BPE.

    Args:
        model: The parsed model.
        source: Its file, for the error.

    Raises:
        FormatError: It is not.
    """
    if model.model_type not in list(_ModelType):
        raise FormatError(
            "the model is of an unknown type",
            where=source,
            found=f"type {model.model_type}",
            expected=_EXPECTED,
            remedy=_REMEDY,
        )


def _parse_piece(message: bytes) -> _ModelPiece:
    """Parse the message of one piece; the numbers of its fields are those of `ModelProto`."""
    fields = dict(_fields(message))
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))
    return _ModelPiece(text=fields[1].decode(), score=score, type=fields.get(3, _PieceType.NORMAL))


def _build_model(
    pieces: list[_ModelPiece], trainer: Mapping[int, Any], normalizer: Mapping[int, Any]
) -> _Model:
    """Build a model from what a SentencePiece file contains: its vocabulary and its settings.

    The file names each setting by a number. A setting that is missing has sentencepiece's default.

    Args:
        pieces: The vocabulary.
        trainer: Number of a setting of the trainer → value.
        normalizer: Number of a setting of the normalizer → value.

    Raises:
        ValueError: There are no settings of the trainer or of the normalizer. Every model has both
            after the pieces, so the file was cut off before them.
    """
    if not trainer or not normalizer:
        raise ValueError("the settings of the trainer or of the normalizer are missing")
    return _Model(
        pieces=pieces,
        model_type=trainer.get(_TrainerField.MODEL_TYPE, _ModelType.UNIGRAM),
        byte_fallback=bool(trainer.get(_TrainerField.BYTE_FALLBACK, 0)),
        has_space_suffix=bool(trainer.get(_TrainerField.TREAT_WHITESPACE_AS_SUFFIX, 0)),
        eos_piece=trainer.get(_TrainerField.EOS_PIECE, b"</s>").decode(),
        charsmap=bytes(normalizer.get(_NormalizerField.PRECOMPILED_CHARSMAP, b"")),
        add_dummy_prefix=bool(normalizer.get(_NormalizerField.ADD_DUMMY_PREFIX, 1)),
        remove_extra_whitespaces=bool(normalizer.get(_NormalizerField.REMOVE_EXTRA_WHITESPACES, 1)),
        escape_whitespaces=bool(normalizer.get(_NormalizerField.ESCAPE_WHITESPACES, 1)),
    )


# Wire types: how the value of a protobuf field is written.
_VARINT = 0
_LENGTH_DELIMITED = 2
_FIXED_SIZES = {1: 8, 5: 4}
"""Wire type → bytes of the value."""
_MAX_VARINT_BYTES = 10
"""Bytes of a number of 64 bits, with seven of these bits in each byte."""


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message, which is a format for numbered values.

    Each field is a key and a value. The key has the number of the field, and the wire type, which
    says how the value is stored. For example, the bytes 18 02 (in hexadecimal):

        18    the key: 00011 000 in bits, so the field 3 and the wire type 0 (a number)
        02    the value 2

    Args:
        message: The bytes of the message.

    Yields:
        (number of the field, value); a value is an int or bytes.

    Raises:
        ValueError, IndexError: The bytes are no protobuf message.
    """
    position = 0
    while position < len(message):
        # The lowest three bits of the key are the wire type.
        key, position = _read_varint(message, position)
        number = key >> 3
        wire_type = key & 7
        value, position = _read_value(message, position, wire_type)
        if number == 0:
            raise ValueError("a protobuf field with number 0")
        yield number, value


def _read_value(message: bytes, position: int, wire_type: int) -> tuple[int | bytes, int]:
    """Read the value of a field of a protobuf message, a format for numbered values.

    It is stored in one of these ways, which the wire type in the field's key says:

        0       a number of variable length
        2       bytes, preceded by their number: 03 61 62 63 is b"abc"
        1, 5    8 or 4 bytes

    Args:
        message: The bytes of the message.
        position: Position of the value, after the key of the field.
        wire_type: How the value is stored.

    Returns:
        (the value, the position after it).

    Raises:
        ValueError: The wire type is unknown, or the message ends within the value.
        IndexError: The message ends within a number.
    """
    if wire_type == _VARINT:
        return _read_varint(message, position)

    if wire_type == _LENGTH_DELIMITED:
        size, position = _read_varint(message, position)
    elif wire_type in _FIXED_SIZES:
        size = _FIXED_SIZES[wire_type]
    else:
        raise ValueError(f"a field of the unknown wire type {wire_type}")
    stop = position + size
    if stop > len(message):
        raise ValueError("a field that ends after the message")
    return message[position:stop], stop


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Read a number of variable length from a protobuf message.

    Each byte has seven bits of the number, the lowest first. The eighth bit is set in all bytes but
    the last. For example, 300 is 10 0101100 in bits:

        bytes          1_0101100    0_0000010
        upper bit      1: go on     0: the last byte

    Args:
        message: The bytes of the message.
        position: Position of the first byte of the number.

    Returns:
        (the number, the position after it).

    Raises:
        ValueError: The number has more than ten bytes.
        IndexError: The message ends within the number.
    """
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        byte = message[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position + count + 1
    raise ValueError("a number without an end")

"""SentencePiece models: their pieces, and the same rules as a tokenizer.json.

The `tokenizers` library decodes by it, and fast engines try it; the `sentencepiece` package, which
gives the tokens, stays the reference. The package is optional, and facts of a model need none: so
the file is read here.
"""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files.source import (
    NEVER_IN_TEXT,
    Content,
    TokenizerFile,
    added_token,
    bpe,
    tokenizer_json,
)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_UNIGRAM, _BPE, _WORD, _CHARACTER = 1, 2, 3, 4
SPACE_SIGN = "▁"


class _Model(NamedTuple):
    """What of sentencepiece_model.proto's ModelProto decides."""

    pieces: list[tuple[str, float, int]]
    """(text, score, type), by id."""
    model_type: int
    byte_fallback: bool
    suffix: bool
    eos_piece: str
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def read_model(source: TokenizerFile) -> Content:
    """Read the pieces of a model, and its rules where a tokenizer.json can hold them.

    Raises:
        FormatError: the file is damaged, or something else.
        ConfigError: special tokens are named that only the legacy wrapper takes.
    """
    if source.special_tokens and not source.legacy:
        raise ConfigError(
            "a SentencePiece model holds its special tokens itself",
            where=source,
            found=f"tokenizer.special_tokens: {' '.join(source.special_tokens[:12])}",
            remedy="leave them out, or set legacy: true (--tokenizer-sentencepiece-legacy), with which Megatron-LM "
            "adds tokens to the model's",
        )
    content = read_regular(source.path)
    model = _parse(content, source)
    ids = {text: ident for ident, (text, _, _) in enumerate(model.pieces)}
    if len(ids) != len(model.pieces) or not ids:
        raise _error(
            source, "the model has no pieces, or two alike", f"{len(ids):,} different pieces"
        )
    special = {
        text: ident for text, ident in ids.items() if model.pieces[ident][2] in (_UNKNOWN, _CONTROL)
    }
    # for special tokens of Megatron-LM's legacy wrapper that are no pieces
    further = itertools.count(len(ids))
    legacy = {
        name: ids[name] if name in ids and model.pieces[ids[name]][2] != _UNKNOWN else next(further)
        for name in dict.fromkeys(source.special_tokens or ())
    }
    vocab_size = max(len(ids) - 1, *legacy.values(), 0) + 1
    return Content(
        json=_as_tokenizer_json(model, ids, special, legacy),
        meaning={"legacy": source.legacy, "special_tokens": list(legacy.items())},
        vocab_size=vocab_size,
        max_id=vocab_size - 1,
        special_tokens={**special, **legacy},
        eod=next(
            (
                text
                for text, _, kind in model.pieces
                if text == model.eos_piece and kind == _CONTROL
            ),
            None,
        ),
    )


def _as_tokenizer_json(
    model: _Model, ids: Mapping[str, int], special: Mapping[str, int], legacy: Mapping[str, int]
) -> bytes:
    named = {
        name if name not in ids else name + NEVER_IN_TEXT: ident for name, ident in legacy.items()
    }
    further = {name: ident for name, ident in named.items() if ident >= len(ids)}
    vocabulary = {**ids, **further}
    user_defined = [text for text, _, kind in model.pieces if kind == _USER_DEFINED]
    added = {
        **dict.fromkeys(special, True),
        **dict.fromkeys(user_defined, False),
        **dict.fromkeys(further, True),
    }
    parts: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_SIGN}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.add_dummy_prefix:
        parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return tokenizer_json(
        added_tokens=[
            added_token(text, vocabulary[text], special=flag) for text, flag in added.items()
        ],
        normalizer=_normalizer(model),
        decoder={"type": "Sequence", "decoders": parts},
        model=_model(model, vocabulary),
    )


def _normalizer(model: _Model) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append(
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(model.charsmap).decode(),
            }
        )
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE_SIGN})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SIGN})
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "normalizers": steps}


def _model(model: _Model, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    unknown = next(
        (ident for ident, (_, _, kind) in enumerate(model.pieces) if kind == _UNKNOWN), None
    )
    plain = (
        all(kind != 5 for _, _, kind in model.pieces)
        and model.escape_whitespaces
        and not model.suffix
    )
    merges = _merges(model) if model.model_type == _BPE and plain else None
    if merges is None:
        pieces = [[text, score] for text, score, _ in model.pieces]
        pieces += [[text, 0.0] for text in list(vocabulary)[len(pieces) :]]
        return {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": pieces,
            "byte_fallback": model.byte_fallback,
        }
    token = None if unknown is None else model.pieces[unknown][0]
    return bpe(
        vocabulary, merges, unk_token=token, fuse_unk=True, byte_fallback=model.byte_fallback
    )


def _merges(model: _Model) -> list[tuple[str, str]] | None:
    """List every two pieces that make a third, best score first; None where merges cannot express
    the scores.
    """
    ids = {
        text: ident
        for ident, (text, _, kind) in enumerate(model.pieces)
        if kind in (_NORMAL, _USER_DEFINED)
    }
    made = [piece for piece in model.pieces if piece[2] == _NORMAL and len(piece[0]) > 1]
    words = [score for text, score, _ in made if text.strip(SPACE_SIGN)]
    # the first in the text wins; of runs of ▁, which often tie, canaries tell
    if len(set(words)) != len(words):
        return None
    merges: list[tuple[str, str]] = []
    for text, _, _ in sorted(made, key=lambda piece: -piece[1]):
        pairs = [
            (text[:cut], text[cut:])
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        ]
        merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _parse(content: bytes, source: TokenizerFile) -> _Model:
    """Read a ModelProto of protobuf: field 1 are the pieces, 2 the trainer's settings, 3 the
    normalizer's.
    """
    pieces: list[tuple[str, float, int]] = []
    settings: dict[int, dict[int, Any]] = {2: {}, 3: {}}
    try:
        for number, value in _fields(content):
            if number == 1:
                piece = dict(_fields(value))
                (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
                pieces.append((piece[1].decode(), score, piece.get(3, _NORMAL)))
            elif number in settings:
                settings[number] = dict(_fields(value))
        trainer, normalizer = settings[2], settings[3]
        model = _Model(
            pieces,
            model_type=trainer.get(3, _UNIGRAM),
            byte_fallback=bool(trainer.get(35, 0)),
            suffix=bool(trainer.get(24, 0)),
            eos_piece=trainer.get(47, b"</s>").decode(),
            charsmap=bytes(normalizer.get(2, b"")),
            add_dummy_prefix=bool(normalizer.get(3, 1)),
            remove_extra_whitespaces=bool(normalizer.get(4, 1)),
            escape_whitespaces=bool(normalizer.get(5, 1)),
        )
        if not settings[2] or not settings[3]:
            # Both follow the pieces in every model. Without this, a file that was cut between two
            # pieces would look whole, and be taken for a smaller unigram model.
            raise ValueError("the settings of the trainer or of the normalizer are missing")
    except (ValueError, LookupError, TypeError, AttributeError, struct.error) as cause:
        what = "this is no SentencePiece model, or it is cut or damaged"
        raise _error(source, what, f"{cause}, behind {len(pieces):,} pieces") from cause
    if model.model_type not in (_UNIGRAM, _BPE, _WORD, _CHARACTER):
        raise _error(source, "the model is of an unknown type", f"type {model.model_type}")
    return model


def _error(where: object, what: str, found: object) -> FormatError:
    expected = "a model as sentencepiece's trainer writes it"
    remedy = "fetch the file again, whole, or name a tokenizer.json"
    return FormatError(what, where=where, found=found, expected=expected, remedy=remedy)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, its number or bytes) of the fields of a protobuf message; ValueError or
    IndexError for no such.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        value: Any = None
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 in (0, 2):
            value, place = _varint(message, place)
        if key & 7 != 0:
            size = value if size is None else size
            if size is None or place + size > len(message):
                raise ValueError(f"a field of wire type {key & 7} that cannot be there")
            value, place = message[place : place + size], place + size
        if key < 8:
            raise ValueError("a protobuf field with number 0")
        yield key >> 3, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Read a number → (number, place behind it)."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + shift // 7 + 1
    raise ValueError("a number without an end")

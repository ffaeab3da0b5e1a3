"""What the numpy engine learns from a tokenizer before it can start, kept in a file so that the next start is quick."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unicodedata import unidata_version

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.storage.atomic import sha256_file, write_atomic
from nanoset_core.tokenization.bpe.characters import SpaceSigns
from nanoset_core.tokenization.bpe.classes import CODE_POINTS, probe_classes
from nanoset_core.tokenization.bpe.patterns import GPT2, SPLIT_PATTERNS, SplitPattern
from nanoset_core.tokenization.bpe.proofs import trusts_python_with
from nanoset_core.tokenization.bpe.reference import ReferenceEngine
from nanoset_core.tokenization.bpe.rules import Rules, recognise
from nanoset_core.tokenization.bpe.units import cuts_are_safe, seams_are_safe
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError, Vocabulary
from nanoset_core.tokenization.files import define

_FORMAT = 4  # of the file; to be raised when what is kept, or how it is found out, changes
_ARRAYS = ("data", "lengths", "ids", "byte_tokens", "merges", "characters", "seams")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenizerProbe:
    """All that the numpy engine needs besides the reference."""

    rules: Rules
    """What its `tokenizer.json` says."""
    classes: NDArray[np.uint8]
    """uint8, shape (0x110000,): class of every code point."""


def load_cached(tokenizer_json: str | os.PathLike[str], folder: Path | None) -> TokenizerProbe | None:
    """What an earlier start found out and kept in `folder`; to be checked before it is believed."""
    return _read(folder / _file_name(tokenizer_json)) if folder else None


def save_cached(known: TokenizerProbe, tokenizer_json: str | os.PathLike[str], folder: Path | None) -> None:
    """Keep knowledge for the next start; where that cannot be done, the next start takes longer and that is all."""
    if folder:
        _write(folder / _file_name(tokenizer_json), known)


def fingerprint(tokenizer_json: str | os.PathLike[str], folder: Path | None) -> str:
    """Hex sha256 of the file that `load_cached` reads; empty where there is none."""
    try:
        return sha256_file(folder / _file_name(tokenizer_json)) if folder else ""
    except OSError:
        return ""


def probe_tokenizer(
    tokenizer_json: str | os.PathLike[str], reference: ReferenceEngine, folder: Path | None = None
) -> TokenizerProbe:
    """Read the rules and probe the library; what holds for other tokenizers too is kept in `folder`.

    Raises:
        NotRecognisedError: the numpy engine does not understand the tokenizer, or the library's Unicode tables.
    """
    recognition = recognise(tokenizer_json)
    if recognition.rules is None:
        raise NotRecognisedError(recognition.reason)
    rules = recognition.rules
    _check_ids_of_runs(rules, reference)
    if rules.form and not trusts_python_with(rules.form, folder):
        raise NotRecognisedError("the library's Unicode tables are newer than Python's")
    pattern = rules.split if isinstance(rules.split, SplitPattern) else GPT2  # for the canary's choice of texts only
    classes = probe_classes(pattern.classes, pattern.rest)
    if not seams_are_safe(rules.vocabulary.seams):
        raise NotRecognisedError("tokens across places where text is cut")
    if not cuts_are_safe(classes):
        raise NotRecognisedError("the library's Unicode tables are not as they should be")
    return TokenizerProbe(rules, classes)


def _check_ids_of_runs(rules: Rules, reference: ReferenceEngine) -> None:
    """Refuse ids of added tokens that the library, which gives them ids of its own, does not use."""
    for character, runs in {" ": rules.space_runs, **rules.literal_runs}.items():
        for length, ident in runs.items():
            found = reference.tokenizer.token_to_id(character * length)
            if found != ident:
                raise NotRecognisedError(f"added token {character * length!r}: id {ident!r}, the library's is {found}")


def _file_name(tokenizer_json: str | os.PathLike[str]) -> str:
    """A name that changes with anything that the knowledge depends on."""
    digest = hashlib.sha256(define(tokenizer_json).identity.encode())
    digest.update(f"{_FORMAT} {version('tokenizers')} {unidata_version} {np.__version__}".encode())
    return f"{digest.hexdigest()[:32]}.npz"


def _read(path: Path) -> TokenizerProbe | None:
    """None when there is no such file, or it is damaged (each member carries a CRC)."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _from_arrays({name: arrays[name] for name in arrays.files})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        logger.info("%s: cannot be used, will be made again: %s", path, error)
        return None


def _write(path: Path, known: TokenizerProbe) -> None:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **_to_arrays(known))
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        logger.info("%s: cannot be written, the next start will take longer: %s", path, error)


def _to_arrays(known: TokenizerProbe) -> dict[str, NDArray[Any]]:
    rules = known.rules
    settings = {
        "split": rules.split.regex if isinstance(rules.split, SplitPattern) else None,
        "signs": [rules.split.prepend, rules.split.each_apart] if isinstance(rules.split, SpaceSigns) else None,
        "literal_runs": {character: sorted(runs.items()) for character, runs in rules.literal_runs.items()},
        "form": rules.form,
        "whole_words": rules.whole_words,
        "space_runs": sorted(rules.space_runs.items()),
        "added_tokens": [token.decode() for token in rules.added_tokens],
        "normalized_tokens": [token.decode() for token in rules.normalized_tokens],
    }
    begins = np.flatnonzero(np.diff(known.classes, prepend=255)).astype(np.int32)  # few runs of equal classes
    arrays = {name: getattr(rules.vocabulary, name) for name in _ARRAYS}
    settings_bytes = np.frombuffer(orjson.dumps(settings), np.uint8)
    return arrays | {"settings": settings_bytes, "class_begins": begins, "class_values": known.classes[begins]}


def _from_arrays(arrays: dict[str, NDArray[Any]]) -> TokenizerProbe:
    settings = orjson.loads(arrays["settings"].tobytes())
    classes = np.repeat(arrays["class_values"], np.diff(arrays["class_begins"], append=CODE_POINTS))
    rules = Rules(
        SPLIT_PATTERNS[tuple(settings["split"])] if settings["split"] else SpaceSigns(*settings["signs"]),
        settings["form"],
        dict(settings["space_runs"]),
        {character: dict(runs) for character, runs in settings["literal_runs"].items()},
        tuple(token.encode() for token in settings["added_tokens"]),
        tuple(token.encode() for token in settings["normalized_tokens"]),
        settings["whole_words"],
        Vocabulary(*(arrays[name] for name in _ARRAYS)),
    )
    return TokenizerProbe(rules, classes)

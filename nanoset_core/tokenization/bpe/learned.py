"""What a lexicon has learnt, kept in a file: later engines of the same tokenizer, in any process, begin with it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import unidata_version

import numpy as np
from numpy.typing import NDArray

from nanoset_core.storage.atomic import discard
from nanoset_core.storage.scratch import open_unfinished, sweep_abandoned
from nanoset_core.tokenization.cache import code_digest
from nanoset_core.tokenization.files import define

_ENDING = ".words.npz"
_KEY = "key"
_FILES = 8
"""Kept at most in one folder."""
_MOST_BYTES = 96 << 20
_DAMAGE = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, MemoryError, zipfile.BadZipFile)

Arrays: TypeAlias = dict[str, NDArray[Any]]

logger = logging.getLogger(__name__)


class LearnedWords:
    """The file of one tokenizer. Where it cannot be read or written, words are learnt again and that is all."""

    def __init__(self, tokenizer_json: str | os.PathLike[str], folder: Path) -> None:
        """`folder` may be shared; the file's name changes with anything that tokens depend on."""
        self._key = _key(tokenizer_json)
        self._path = folder / f"{self._key[:32]}{_ENDING}"

    def load(self) -> Arrays | None:
        """What an earlier engine saved; None where there is nothing, or what there is is damaged or of another key."""
        try:
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as members:  # each has a CRC
                arrays = {name: members[name] for name in members.files}
            if arrays.pop(_KEY).tobytes().decode() != self._key:
                raise ValueError("it is of another tokenizer or version")
        except FileNotFoundError:
            return None
        except _DAMAGE as error:
            self.drop(error)
            return None
        return arrays

    def save(self, arrays: Arrays) -> None:
        """Keep what was learnt, unless the file holds more by now."""
        size = sum(array.nbytes for array in arrays.values())
        if size > _MOST_BYTES:
            return
        try:
            if self._path.exists() and self._path.stat().st_size > size:
                return  # another process was here
            self._write(arrays | {_KEY: np.frombuffer(self._key.encode(), np.uint8)})
            self._remove_old()
        except OSError as error:
            logger.info("%s: cannot be written, later runs will take longer: %s", self._path, error)

    def _write(self, arrays: Arrays) -> None:
        """Whole or not at all; nobody waits for the disk, since a damaged file is noticed."""
        file = open_unfinished(self._path)
        try:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.replace(file.name, self._path)
            file.close()
        except BaseException:
            discard(file)
            raise

    def drop(self, reason: object) -> None:
        """Remove a file that cannot be used."""
        logger.info("%s: cannot be used, will be made again: %s", self._path, reason)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        sweep_abandoned(self._path.parent, self._path.name)
        files = sorted(self._path.parent.glob(f"*{_ENDING}"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-_FILES]:
            path.unlink(missing_ok=True)


def _key(tokenizer_json: str | os.PathLike[str]) -> str:
    """sha256 of all that decides which tokens a word has: the tokenizer, this code, and the libraries."""
    digest = hashlib.sha256(define(tokenizer_json).identity.encode())
    digest.update(f"{code_digest()} {version('tokenizers')} {np.__version__} {unidata_version}".encode())
    return digest.hexdigest()

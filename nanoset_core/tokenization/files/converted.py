"""What large files of tokenizers were made into, kept in a file: reading 150,000 ranks anew takes seconds."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

import orjson

from nanoset_core.storage.atomic import write_atomic
from nanoset_core.tokenization.cache import cache_folder, code_digest
from nanoset_core.tokenization.files.content import Content

_ENDING = ".tokenizer"
_FILES = 8
"""Kept at most."""
_LEAST_BYTES = 1 << 20
"""Less is made again as quickly."""

logger = logging.getLogger(__name__)


class Converted:
    """The file of one tokenizer. Where it cannot be read or written, that takes time and that is all."""

    def __init__(self, digests: Sequence[str], settings: Mapping[str, object]) -> None:
        """digests: of the tokenizer's files. settings: what was said of them."""
        known = orjson.dumps([*digests, sorted(settings.items()), code_digest()], default=str)
        self._key = hashlib.sha256(known).hexdigest()
        folder = cache_folder()
        self._path = None if folder is None else folder / f"{self._key[:32]}{_ENDING}"

    def recall(self) -> Content | None:
        """What an earlier process made; None where there is nothing, or what there is is damaged."""
        if self._path is None:
            return None
        try:
            checksum, facts, content = self._path.read_bytes().split(b"\n", 2)
            if checksum != self._checksum(facts, content):
                raise ValueError("its content is not that of its checksum")
            return Content(json=content, **orjson.loads(facts))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            logger.info("%s: cannot be used, will be made again: %s", self._path, error)
            return None

    def remember(self, content: Content) -> None:
        """Keep what was made, where that is worth it."""
        if self._path is None or len(content.json) < _LEAST_BYTES:
            return
        facts = orjson.dumps({name: getattr(content, name) for name in _FACTS})
        try:
            write_atomic(self._path, b"\n".join([self._checksum(facts, content.json), facts, content.json]))
        except OSError as error:
            logger.info("%s: cannot be written, the next start will take longer: %s", self._path, error)
            return
        with suppress(OSError):  # another process may remove them too
            files = sorted(self._path.parent.glob(f"*{_ENDING}"), key=lambda path: path.stat().st_mtime_ns)
            for path in files[:-_FILES]:
                path.unlink(missing_ok=True)

    def _checksum(self, *parts: bytes) -> bytes:
        return hashlib.sha256(b"\n".join([self._key.encode(), *parts])).hexdigest().encode()


_FACTS = ("meaning", "vocab_size", "max_id", "special_tokens", "eod", "notice")

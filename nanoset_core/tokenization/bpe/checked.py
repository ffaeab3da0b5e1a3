"""An engine that is compared with the reference on the first documents, and gives way to it if they differ."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from nanoset_core.tokenization.bpe.base import Encoded, Engine
from nanoset_core.tokenization.bpe.canary import same_tokens, sample_of

logger = logging.getLogger(__name__)


class CheckedEngine:
    """Encodes with a fast engine, after comparing it on a sample of the first documents.

    May be called from several threads; one at a time gets on.
    """

    def __init__(self, fast: Engine, reference: Engine, *, reason: str) -> None:
        self._engine = fast
        self._reference = reference
        self._sampled = False
        self._lock = threading.Lock()
        self.reason = reason

    @property
    def name(self) -> str:
        """Name of the engine that is in use."""
        return self._engine.name

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents; raises InputError when a text is not valid Unicode (a lone surrogate)."""
        with self._lock:
            encoded = self._engine.encode(texts)
            if self._sampled or not len(texts):
                return encoded
            self._sampled = True
            sample = sample_of(texts)
            if same_tokens(self._engine, self._reference, sample):
                return encoded
            self.reason = f"the {self.name} engine gave other tokens than the reference for a sample of the documents"
            logger.warning("%s; the %s engine takes over", self.reason, self._reference.name)
            self._engine = self._reference
            return self._engine.encode(texts)

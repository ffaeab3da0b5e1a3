"""An engine for the text that another one leaves over: it gets faster once there is much of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nanoset_core.tokenization.bpe.reference import Encoded, Engine
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError

FEW_CHARACTERS = 1 << 18
"""Text that the reference encodes in less time than it takes to make another engine."""


class GrowingEngine:
    """Encodes with the reference, and with a faster engine that gives its tokens once there is text worth making it."""

    def __init__(self, reference: Engine, make_faster: Callable[[], Engine]) -> None:
        """`make_faster` raises NotRecognisedError where there is none."""
        self._engine = reference
        self.helper = ""
        """Name and version of the faster engine, once it is in use."""
        self._make_faster: Callable[[], Engine] | None = make_faster
        self._left = FEW_CHARACTERS
        self.reason = reference.reason

    @property
    def name(self) -> str:
        """Name of the engine that is in use."""
        return self._engine.name

    @property
    def version(self) -> str:
        """Version of the engine that is in use."""
        return self._engine.version

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        self._left -= sum(map(len, texts))
        if self._left < 0 and self._make_faster is not None:
            make_faster, self._make_faster = self._make_faster, None
            try:
                self._engine = make_faster()
                self.helper = f"{self._engine.name} {self._engine.version}"
            except NotRecognisedError as error:
                self.reason = str(error)
        return self._engine.encode(texts)

"""A text tokenized once more, by the reference, to be compared with the tokens that a dataset holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe import ReferenceEngine, reference_engine
from nanoset_core.tokenization.files import TokenizerPath, stamp
from nanoset_core.tokenization.framing import Framing
from nanoset_core.tokenization.tokenizer import tokenizer_facts


@dataclass(frozen=True, slots=True)
class Retokenizer:
    """Makes a document's tokens from its text under the options that a dataset was made with."""

    reference: ReferenceEngine
    framing: Framing

    def encode(self, text: str) -> tuple[NDArray[np.int64], list[int]]:
        """(ids, int64[n], special ones included; character at which each begins, the specials' 0 or the end)."""
        ids, places = self.reference.locate(text)
        framed = bool(ids) or self.framing.empty == "sequence"
        before, after = (self.framing.before, self.framing.after) if framed else ((), ())
        begins = [0] * len(before) + places + [len(text)] * len(after)
        return np.array([*before, *ids, *after], np.int64), begins

    def decode(self, tokens: NDArray[Any]) -> str:
        """Text of tokens, special ones spelled out."""
        return str(self.reference.tokenizer.decode(tokens.tolist(), skip_special_tokens=False))


def retokenizer(tokenizer_file: TokenizerPath | None, options: Mapping[str, Any]) -> Retokenizer | None:
    """One for a dataset of these options; None where its tokenizer is not the one at hand.

    Raises:
        MissingError, FormatError: see load_tokenizer.
    """
    if tokenizer_file is None or tokenizer_facts(tokenizer_file).fingerprint != options["tokenizer"]:
        return None
    framing = options["framing"]
    parts = tuple(framing["before"]), tuple(framing["after"])
    return Retokenizer(_loaded(tokenizer_file, stamp(tokenizer_file)), Framing(*parts, framing["empty"]))


@lru_cache(maxsize=2)
def _loaded(file: TokenizerPath, _stamp: object) -> ReferenceEngine:
    return reference_engine(file)

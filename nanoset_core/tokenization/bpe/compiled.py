"""What the numpy engine computes of a tokenizer before it can start, and how that is kept for the next start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.characters import SpaceSigns
from nanoset_core.tokenization.bpe.classes import from_runs, probe_classes, to_runs
from nanoset_core.tokenization.bpe.patterns import GPT2, SPLIT_PATTERNS, SplitPattern
from nanoset_core.tokenization.bpe.reference import NotRecognisedError, ReferenceEngine
from nanoset_core.tokenization.bpe.rules import Rules, recognise
from nanoset_core.tokenization.bpe.units import Form, cuts_are_safe, no_merge_crosses_cuts, trusts_python
from nanoset_core.tokenization.bpe.vocabulary import Vocabulary
from nanoset_core.tokenization.knowledge import Arrays, Knowledge, from_array, to_array

_ARRAYS = ("data", "lengths", "ids", "byte_tokens", "merges", "characters", "boundary_pairs")


@dataclass(frozen=True, slots=True)
class CompiledTokenizer:
    """All that the numpy engine needs besides the reference."""

    rules: Rules
    """What its `tokenizer.json` says."""
    classes: NDArray[np.uint8]
    """uint8, shape (0x110000,): class of every code point."""

    def to_arrays(self) -> Arrays:
        """Return all fields as arrays."""
        rules = self.rules
        settings = {
            "split": rules.split.regex if isinstance(rules.split, SplitPattern) else None,
            "signs": [rules.split.prepend, rules.split.each_apart] if isinstance(rules.split, SpaceSigns) else None,
            "form": rules.form,
            "space_runs": sorted(rules.space_runs.items()),
            "literal_runs": {character: sorted(runs.items()) for character, runs in rules.literal_runs.items()},
            "added_tokens": [token.decode() for token in rules.added_tokens],
            "normalized_tokens": [token.decode() for token in rules.normalized_tokens],
            "whole_words": rules.whole_words,
        }
        begins, values = to_runs(self.classes)
        arrays = {name: getattr(rules.vocabulary, name) for name in _ARRAYS}
        return arrays | {"settings": to_array(settings), "class_begins": begins, "class_values": values}

    @staticmethod
    def from_arrays(arrays: Arrays) -> CompiledTokenizer:
        """Return the tokenizer that `to_arrays` was asked of."""
        settings = from_array(arrays["settings"])
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
        return CompiledTokenizer(rules, from_runs(arrays["class_begins"], arrays["class_values"]))


def compile_tokenizer(
    tokenizer_json: str | os.PathLike[str], reference: ReferenceEngine, folder: Path | None = None
) -> CompiledTokenizer:
    """Read a tokenizer's rules, and ask the library for its character classes.

    Args:
        tokenizer_json: The tokenizer's file.
        reference: The same tokenizer.
        folder: Where what holds for other tokenizers too is kept.

    Raises:
        NotRecognisedError: The numpy engine does not understand the tokenizer, or the library's Unicode tables.
    """
    rules = recognise(tokenizer_json)
    _check_ids_of_runs(rules, reference)
    if rules.form and not form_trusts_python(rules.form, folder):
        raise NotRecognisedError("the library's Unicode tables are newer than Python's")
    pattern = rules.split if isinstance(rules.split, SplitPattern) else GPT2  # then only cuts are checked by them
    classes = probe_classes(pattern.classes, pattern.rest)
    if not no_merge_crosses_cuts(rules.vocabulary.boundary_pairs):
        raise NotRecognisedError("tokens across places where text is cut")
    if not cuts_are_safe(classes):
        raise NotRecognisedError("the library's Unicode tables are not as they should be")
    return CompiledTokenizer(rules, classes)


def form_trusts_python(form: Form, folder: Path | None) -> bool:
    """Tell whether the library's normal form trusts Python's (see `trusts_python`); tested once for all tokenizers."""
    from tokenizers import normalizers

    kept = Knowledge("form", form, folder)
    if (found := kept.load()) is not None:
        return bool(found["trusts_python"])
    trusts = trusts_python(getattr(normalizers, form)().normalize_str, form)
    kept.save({"trusts_python": np.array(trusts)})
    return trusts


def _check_ids_of_runs(rules: Rules, reference: ReferenceEngine) -> None:
    """Refuse ids of added tokens that the library, which gives them ids of its own, does not use."""
    for character, runs in {" ": rules.space_runs, **rules.literal_runs}.items():
        for length, number in runs.items():
            found = reference.tokenizer.token_to_id(character * length)
            if found != number:
                raise NotRecognisedError(f"added token {character * length!r}: id {number!r}, the library's is {found}")

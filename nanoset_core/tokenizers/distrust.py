"""Engines that give wrong tokens: how they are found while a shard is made, and records of them
below the root.

A seeded share of every shard's documents is encoded by the reference too. Once there is a record
for a tokenizer, the recipe of everything that is tokenized with it names the engines that are not
used any more. So what was made before is stale, and is made again without them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nanoset_core.errors import InputError
from nanoset_core.outputs.manifest import Manifest, digest_of
from nanoset_core.outputs.root import SEEN_SECONDS, OutputRoot
from nanoset_core.tokenizers.engines.arrays import Ids
from nanoset_core.tokenizers.engines.gate import GatedEngine
from nanoset_core.tokenizers.engines.reference import (
    Encoded,
    EncodingError,
    Engine,
    WrongTokensError,
    panics_as_errors,
)
from nanoset_core.untrusted import safe_logger

FOLDER = "distrusted_engines"
ENCODER = "encoder"
"""Name of a shard's fact of the engine that made it."""
OPTION = "distrusted_engines"
"""Name of the option of recipes: `name version` of each engine, sorted."""
SHARE = 0.001
"""Of the documents that are compared, by default."""
LEAST = 4
"""The first documents of each shard, which are compared too unless they are long."""
_LONG = 1 << 12  # characters: some ten milliseconds of the reference's time in all
_LONGEST = 1 << 20  # characters of any that are compared: the reference takes 130 bytes for each
_SHOWN = 4

logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True)
class Encoder:
    """What made the tokens of a shard; in its manifest's facts, and in no digest."""

    engine: str
    """One of bpe.KINDS, without `auto`."""
    version: str
    """Its version."""
    audited: int
    """Documents that the reference gave the same tokens for; all are the reference's where it is
    the engine.
    """
    helper: str = ""
    """Another engine, and its version, that may have encoded what this one leaves aside."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the engines, with their versions, that may have given tokens."""
        return tuple(filter(None, (f"{self.engine} {self.version}", self.helper)))


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why an engine is no longer trusted with a tokenizer."""

    engine: str
    version: str
    tokenizer: str
    """Hex sha256."""
    where: str
    """Corpus, file and line of the document."""
    what: str
    """The first difference."""

    @property
    def name(self) -> str:
        """Return the engine with its version."""
        return f"{self.engine} {self.version}"

    def __str__(self) -> str:
        return f"{self.name} gave wrong tokens for {self.where}: {self.what}"


class DistrustError(Exception):
    """An engine gave wrong tokens while a shard was made."""

    def __init__(self, record: Distrust) -> None:
        super().__init__(record)
        self.record = record


class Audit:
    """Encodes batches of one shard, and compares some of the documents with the engine's reference."""

    def __init__(self, engine: Engine, share: float, seed: str) -> None:
        """Together, share (0 to 1) and seed decide which documents are compared, whatever the
        batches.
        """
        if isinstance(engine, GatedEngine):
            engine.begin()  # it may have made other shards
        self._engine, self._share, self._random = engine, share, random.Random(seed)
        self._seen = 0
        self.documents = 0
        """How many were compared."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode the next batch.

        Raises:
            WrongTokensError: The reference gives other tokens for one of the documents, or the
                engine failed.
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The reference fails on a document.
        """
        reference = self._engine.reference
        try:
            with panics_as_errors():
                encoded = self._engine.encode(texts)
        except Exception as error:
            if reference is not None and isinstance(error, EncodingError):
                # The engine gave the reference a part of the batch. If the reference fails on a
                # whole document, too, this raises the error with that document's number.
                reference.encode(texts)
            elif reference is None or isinstance(error, (InputError, MemoryError)):
                raise
            raise WrongTokensError(f"it failed: {repr(error)[:500]}") from error
        chosen = self._chosen(texts) if reference is not None and self._share > 0 else []
        if reference is not None and chosen:
            self._compare(texts, chosen, encoded, reference)
            self.documents += len(chosen)
        self._seen += len(texts)
        return encoded

    def _compare(
        self, texts: Sequence[str], chosen: Sequence[int], encoded: Encoded, reference: Engine
    ) -> None:
        """Raise WrongTokensError for the first of the chosen documents for which the reference
        gives other tokens.
        """
        try:
            expected_lists = reference.encode([texts[number] for number in chosen]).lists()
        except EncodingError as error:
            error.document = chosen[error.document]
            raise
        token_lists = encoded.lists()
        for number, expected in zip(chosen, expected_lists, strict=True):
            if not np.array_equal(token_lists[number], expected):
                raise WrongTokensError(_difference(token_lists[number], expected), number)

    def _chosen(self, texts: Sequence[str]) -> list[int]:
        return [
            number
            for number, text in enumerate(texts)
            if (self._random.random() < self._share and len(text) <= _LONGEST)
            or (self._seen + number < LEAST and len(text) <= _LONG)
        ]


def _difference(ours: Ids, theirs: Ids) -> str:
    """Describe the first place in which two lists of tokens differ."""
    shared = min(len(ours), len(theirs))
    position = int(np.argmax(np.append(ours[:shared] != theirs[:shared], True)))
    shown = [one[position : position + _SHOWN].tolist() for one in (ours, theirs)]
    here, there = (", ".join(map(str, tokens)) + ", …" if tokens else "nothing" for tokens in shown)
    return f"token {position:,} on is {here} instead of {there}"


def note(outputs: OutputRoot, distrust: Distrust) -> None:
    """Write a record below a root."""
    name = f"{digest_of([distrust.engine, distrust.version, distrust.tokenizer])}.json"
    path = outputs.folder / FOLDER / name
    data = orjson.dumps(asdict(distrust), option=orjson.OPT_INDENT_2)
    outputs.access.write(path, data)
    _read.pop(outputs.folder, None)


def noted(
    outputs: OutputRoot, tokenizer: str | None = None, *, again: bool = False
) -> list[Distrust]:
    """Return the records below a root, of one tokenizer or of all; unreadable ones are skipped with
    a warning.

    Where outputs live in a bucket, records are remembered for some seconds, unless they are to be
    read `again`.
    """
    read_at, records = _read.get(outputs.folder, (float("-inf"), []))
    if again or not outputs.access.has_copies or time.monotonic() - read_at > SEEN_SECONDS:
        records = _records(outputs)
        _read[outputs.folder] = time.monotonic(), records
    return [record for record in records if tokenizer in (None, record.tokenizer)]


_read: dict[Path, tuple[float, list[Distrust]]] = {}
"""Folder of each root → (when its records were read, these)."""


def _records(outputs: OutputRoot) -> list[Distrust]:
    found = []
    folder = outputs.folder / FOLDER
    for name in sorted(name for name in outputs.access.names(folder) if name.endswith(".json")):
        try:
            found.append(Distrust(**orjson.loads(outputs.access.read_current(folder / name))))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError) as error:
            logger.warning(
                "%s: not a record of a distrusted engine, skipped: %s", folder / name, error
            )
    return found


def recipe_options(records: Iterable[Distrust]) -> dict[str, Any]:
    """Return what recipes hold of the records of a tokenizer: nothing where there are none."""
    engines = sorted({record.name for record in records})
    return {OPTION: engines} if engines else {}


def encoder_of(shard: Manifest) -> Encoder | None:
    """Return what made a shard; None where an earlier version of nanoset did, which did not say."""
    fact: Any = shard.facts.get(ENCODER)
    return None if fact is None else Encoder(**fact)


def encoders_of(shards: Iterable[Manifest]) -> tuple[Encoder, ...]:
    """Return what made shards, as far as they say: one for each engine and version, with all that
    was compared.
    """
    audited: Counter[Encoder] = Counter()
    for encoder in filter(None, map(encoder_of, shards)):
        audited[replace(encoder, audited=0)] += encoder.audited
    return tuple(replace(encoder, audited=count) for encoder, count in audited.items())


def described(encoders: Collection[Encoder]) -> str:
    """Return which engines these are, and how many documents were compared, as one clause."""
    names = dict.fromkeys(name for encoder in encoders for name in encoder.names)
    audited = sum(encoder.audited for encoder in encoders)
    return f"tokenized by {' and '.join(names)}; {audited:,} documents compared with the tokenizers library"

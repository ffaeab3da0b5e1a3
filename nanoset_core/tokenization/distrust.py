"""Engines that gave wrong tokens for a document: records below the root, and the shards that are suspect by them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from nanoset_core.outputs.manifest import Manifest, digest_of
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.tokenization.bpe.reference import ReferenceEngine

FOLDER = "distrusted_engines"
ENCODER = "encoder"
"""Name of a shard's fact of the engine that made it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Encoder:
    """What made the tokens of a shard; in its manifest's facts, and in no digest."""

    engine: str
    """One of bpe.KINDS, without `auto`."""
    version: str
    """Its version."""
    audited: int
    """Documents that the reference gave the same tokens for; all are the reference's where it is the engine."""
    helper: str = ""
    """Another engine, and its version, that may have encoded what this one leaves aside."""

    @property
    def names(self) -> tuple[str, ...]:
        """Engines with their versions, that may have given tokens."""
        return tuple(filter(None, (f"{self.engine} {self.version}", self.helper)))


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why an engine is not trusted any more with a tokenizer."""

    engine: str
    version: str
    tokenizer: str
    """Hex sha256."""
    where: str
    """Corpus, file and line of the document."""
    what: str
    """The first difference."""

    def __str__(self) -> str:
        return f"{self.engine} {self.version} gave wrong tokens for {self.where}: {self.what}"

    @property
    def file_name(self) -> str:
        """One for each engine, version and tokenizer."""
        return f"{digest_of([self.engine, self.version, self.tokenizer])}.json"


def note(outputs: OutputRoot, distrust: Distrust) -> None:
    """Record it below a root."""
    path = outputs.folder / FOLDER / distrust.file_name
    data = orjson.dumps(asdict(distrust), option=orjson.OPT_INDENT_2)
    write_atomic(path, data)
    outputs.access.send_small(path, data)


def is_any(outputs: OutputRoot) -> bool:
    """Whether there are records below a root."""
    return bool(outputs.access.names(outputs.folder / FOLDER))


def noted(outputs: OutputRoot) -> list[Distrust]:
    """All records below a root; one that cannot be read is passed over with a warning."""
    found = []
    folder = outputs.folder / FOLDER
    for name in sorted(name for name in outputs.access.names(folder) if name.endswith(".json")):
        try:
            found.append(Distrust(**orjson.loads(outputs.access.read_current(folder / name))))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError) as error:
            logger.warning("%s: not a record of a distrusted engine, passed over: %s", folder / name, error)
    return found


def encoder_of(shard: Manifest) -> Encoder | None:
    """What made a shard; None where an earlier version of nanoset did, which did not say."""
    fact: Any = shard.facts.get(ENCODER)
    return None if fact is None else Encoder(**fact)


def suspicion(shard: Manifest, distrusted: Collection[Distrust]) -> Distrust | None:
    """Why a shard's tokens may be wrong."""
    encoder = encoder_of(shard) if distrusted else None
    if encoder is None or encoder.engine == ReferenceEngine.name:
        return None
    tokenizer = shard.recipe["options"]["tokenizer"]
    ours = (one for one in distrusted if one.tokenizer == tokenizer)
    return next((one for one in ours if f"{one.engine} {one.version}" in encoder.names), None)


def encoders_of(shards: Iterable[Manifest]) -> tuple[Encoder, ...]:
    """What made shards, as far as they say: one for each engine and version, with all that was compared."""
    audited: Counter[Encoder] = Counter()
    for encoder in filter(None, map(encoder_of, shards)):
        audited[replace(encoder, audited=0)] += encoder.audited
    return tuple(replace(encoder, audited=count) for encoder, count in audited.items())


def described(encoders: Collection[Encoder]) -> str:
    """Which engines these are, and how many documents were compared, as one clause."""
    names = dict.fromkeys(name for encoder in encoders for name in encoder.names)
    audited = sum(encoder.audited for encoder in encoders)
    return f"made by {' and '.join(names)}; {audited:,} documents compared with the reference"

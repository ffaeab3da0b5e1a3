"""Engines that gave wrong tokens for a document: records below the root, which become part of recipes.

Once there is a record for a tokenizer, the recipe of everything that is tokenized with it names the engines that are
not used any more. So what was made before is stale, and is made again without them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from nanoset_core.outputs.manifest import Manifest, digest_of
from nanoset_core.outputs.root import SEEN_SECONDS, OutputRoot
from nanoset_core.storage.atomic import write_atomic

FOLDER = "distrusted_engines"
ENCODER = "encoder"
"""Name of a shard's fact of the engine that made it."""
OPTION = "distrusted_engines"
"""Name of the option of recipes: `name version` of each engine, sorted."""

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

    def __str__(self) -> str:
        return f"{self.engine} {self.version} gave wrong tokens for {self.where}: {self.what}"


class DistrustError(Exception):
    """An engine gave wrong tokens while a shard was made."""

    def __init__(self, record: Distrust) -> None:
        super().__init__(record)
        self.record = record


def note(outputs: OutputRoot, distrust: Distrust) -> None:
    """Write a record below a root."""
    name = f"{digest_of([distrust.engine, distrust.version, distrust.tokenizer])}.json"
    path = outputs.folder / FOLDER / name
    data = orjson.dumps(asdict(distrust), option=orjson.OPT_INDENT_2)
    write_atomic(path, data)
    outputs.access.send_small(path, data)
    _read.pop(outputs.folder, None)


def noted(outputs: OutputRoot, tokenizer: str | None = None, *, again: bool = False) -> list[Distrust]:
    """Return the records below a root, of one tokenizer or of all; unreadable ones are skipped with a warning.

    Where outputs live in a bucket, records are remembered for some seconds, unless they are to be read `again`.
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
            logger.warning("%s: not a record of a distrusted engine, skipped: %s", folder / name, error)
    return found


def recipe_options(records: Iterable[Distrust]) -> dict[str, Any]:
    """Return what recipes hold of the records of a tokenizer: nothing where there are none."""
    engines = sorted({f"{record.engine} {record.version}" for record in records})
    return {OPTION: engines} if engines else {}


def encoder_of(shard: Manifest) -> Encoder | None:
    """Return what made a shard; None where an earlier version of nanoset did, which did not say."""
    fact: Any = shard.facts.get(ENCODER)
    return None if fact is None else Encoder(**fact)


def encoders_of(shards: Iterable[Manifest]) -> tuple[Encoder, ...]:
    """Return what made shards, as far as they say: one for each engine and version, with all that was compared."""
    audited: Counter[Encoder] = Counter()
    for encoder in filter(None, map(encoder_of, shards)):
        audited[replace(encoder, audited=0)] += encoder.audited
    return tuple(replace(encoder, audited=count) for encoder, count in audited.items())


def described(encoders: Collection[Encoder]) -> str:
    """Return which engines these are, and how many documents were compared, as one clause."""
    names = dict.fromkeys(name for encoder in encoders for name in encoder.names)
    audited = sum(encoder.audited for encoder in encoders)
    return f"made by {' and '.join(names)}; {audited:,} documents compared with the reference"

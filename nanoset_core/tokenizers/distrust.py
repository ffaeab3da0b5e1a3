"""Records of engines that gave wrong tokens, stored below a project's root.

Once an engine is recorded as distrusted for a tokenizer, the recipes of everything that is
tokenized with it name this engine as one that must not be used. So everything that was made before
becomes stale, and is rebuilt with another engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nanoset_core.outputs.manifest import digest_of
from nanoset_core.outputs.root import SEEN_SECONDS, OutputRoot
from nanoset_core.untrusted import safe_logger

FOLDER = "distrusted_engines"
"""Folder of the records, below the root."""
OPTION = "distrusted_engines"
"""Name of the option of recipes: `name version` of each distrusted engine, sorted."""

logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why an engine is no longer trusted with a tokenizer."""

    engine: str
    version: str
    tokenizer: str
    """Fingerprint of the tokenizer."""
    where: str
    """Corpus, file and line of the document with wrong tokens."""
    what: str
    """The first difference."""

    @property
    def name(self) -> str:
        """The engine with its version."""
        return f"{self.engine} {self.version}"

    def __str__(self) -> str:
        return f"{self.name} gave wrong tokens for {self.where}: {self.what}"


class DistrustError(Exception):
    """An engine gave wrong tokens while a shard was made."""

    def __init__(self, record: Distrust) -> None:
        super().__init__(record)
        self.record = record


def save_record(outputs: OutputRoot, record: Distrust) -> None:
    """Store a record below a root."""
    digest = digest_of([record.engine, record.version, record.tokenizer])
    path = outputs.folder / FOLDER / f"{digest}.json"
    outputs.access.write(path, orjson.dumps(asdict(record), option=orjson.OPT_INDENT_2))
    _remembered.pop(outputs.folder, None)


class _Remembered(NamedTuple):
    read_at: float
    """When the records were read, by the monotonic clock."""
    records: list[Distrust]


_remembered: dict[Path, _Remembered] = {}
"""Folder of a root → its records. They are remembered because a bucket takes time to list."""


def load_records(
    outputs: OutputRoot, tokenizer: str | None = None, *, refresh: bool = False
) -> list[Distrust]:
    """Return the records of engines that gave wrong tokens in a project.

    Listing a bucket takes time, so records of a bucket that were read a few seconds ago are
    returned again. A record that cannot be read is skipped with a warning.

    Args:
        outputs: The root of the project's outputs.
        tokenizer: Fingerprint of the tokenizer whose records are returned; None for all.
        refresh: Whether to read the records even if they were read a few seconds ago.
    """
    records = None
    if not refresh:
        records = _recent_records(outputs)
    if records is None:
        records = _read_records(outputs)
        _remembered[outputs.folder] = _Remembered(time.monotonic(), records)

    if tokenizer is None:
        return list(records)
    return [record for record in records if record.tokenizer == tokenizer]


def _recent_records(outputs: OutputRoot) -> list[Distrust] | None:
    """Return the records of a bucket that were read a few seconds ago, or None."""
    remembered = _remembered.get(outputs.folder)
    if remembered is None or not outputs.access.has_copies:
        return None
    age = time.monotonic() - remembered.read_at
    return remembered.records if age <= SEEN_SECONDS else None


def _read_records(outputs: OutputRoot) -> list[Distrust]:
    """Read all records below a root, sorted by file name."""
    folder = outputs.folder / FOLDER
    records = []
    for name in sorted(outputs.access.names(folder)):
        if not name.endswith(".json"):
            continue
        try:
            content = outputs.access.read_current(folder / name)
            records.append(Distrust(**orjson.loads(content)))
        except FileNotFoundError:
            continue  # it was deleted meanwhile
        except (ValueError, TypeError) as error:
            logger.warning(
                "%s: not a record of a distrusted engine, skipped: %s", folder / name, error
            )
    return records


def recipe_options(records: Iterable[Distrust]) -> dict[str, Any]:
    """Return the options by which recipes exclude distrusted engines; empty without records.

    Args:
        records: The records of one tokenizer.
    """
    engines = sorted({record.name for record in records})
    return {OPTION: engines} if engines else {}

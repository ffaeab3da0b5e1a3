"""Tables of a corpus's files: what lies in the raw folder, and what became of each file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import dagster as dg

from nanoset_assets.ui.metadata import ROWS_SHOWN, bytes_text, plural, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.raw.pieces import Inventory, SourceRange, cut_ranges
from nanoset_core.raw.rejects import Reject
from nanoset_core.tokenization.document_table import counts_by_file
from nanoset_core.tokenization.shards import DOCUMENTS, REJECTS

_DOCUMENTS_READ = 2_000_000
"""Documents whose rows are read for the sake of a table, at most: some tenths of a second."""


@dataclass(slots=True)
class FileCounts:
    """What became of one file."""

    stored_bytes: int = 0
    """as it lies there"""
    documents: int = 0
    """written"""
    tokens: int = 0
    """special ones included"""
    rejected: int = 0
    """lines that are no document"""
    skipped: int | None = 0
    """documents without tokens that were left out; None where only the sum over several files is known"""

    def row(self, path: str) -> dict[str, str]:
        """A row of a table."""
        lines = None if self.skipped is None else self.documents + self.rejected + self.skipped
        return {
            "file": path,
            "stored": bytes_text(self.stored_bytes),
            "lines": "?" if lines is None else f"{lines:,}",
            "documents": f"{self.documents:,}",
            "rejected": f"{self.rejected:,}",
            "tokens": f"{self.tokens:,}",
        }


def raw_files(inventory: Inventory) -> dg.TableMetadataValue:
    """The files of an inventory, in document order."""
    sizes = stored_bytes(inventory)
    rows = [{"file": path, "stored": bytes_text(size)} for path, size in islice(sizes.items(), ROWS_SHOWN)]
    return table(rows, len(sizes))


def stored_bytes(inventory: Inventory) -> dict[str, int]:
    """Bytes of each file, in document order."""
    sizes: dict[str, int] = {}
    for piece in inventory.pieces:
        sizes[piece.path] = sizes.get(piece.path, 0) + piece.size
    return sizes


def what_changed(before: Inventory | None, after: Inventory) -> str:
    """How the files differ from those of an earlier inventory."""
    if before is None:
        return "the first inventory"
    old, new = _digests(before), _digests(after)
    counts = {
        "added": len(new.keys() - old.keys()),
        "removed": len(old.keys() - new.keys()),
        "changed": sum(old[path] != digests for path, digests in new.items() if path in old),
    }
    return ", ".join(f"{plural(count, 'file')} {what}" for what, count in counts.items() if count) or "nothing"


def _digests(inventory: Inventory) -> dict[str, list[str]]:
    digests: dict[str, list[str]] = {}
    for piece in inventory.pieces:
        digests.setdefault(piece.path, []).append(piece.digest)
    return digests


def tokenized_files(
    inventory: Inventory, tokenized: Manifest, shards: Sequence[Manifest]
) -> dg.TableMetadataValue | None:
    """What became of the first files of a corpus; `shards` are all of them, in document order.

    A shard of one file says it in its manifest; of the others the tables of documents are read, up to a limit.
    None where the shards are not cut as the inventory's files would be today.
    """
    ranges = cut_ranges(inventory, tokenized.recipe["options"]["range_bytes"])
    if len(ranges) != len(shards):
        return None
    counts: dict[str, FileCounts] = {}
    for path, found in _counts(ranges, shards):
        if found is None:
            counts.pop(path, None)  # a part of it was not read
            continue
        total = counts.setdefault(path, FileCounts())
        total.stored_bytes += found.stored_bytes
        total.documents += found.documents
        total.tokens += found.tokens
        total.rejected += found.rejected
        total.skipped = None if None in (total.skipped, found.skipped) else total.skipped + found.skipped
        if len(counts) > ROWS_SHOWN:
            break
    rows = [count.row(path) for path, count in islice(counts.items(), ROWS_SHOWN)]
    return table(rows, len(inventory.files))


def _counts(ranges: Sequence[SourceRange], shards: Sequence[Manifest]) -> Iterator[tuple[str, FileCounts | None]]:
    """Counts of each file in each shard; None for those of the first shard that is too much to read."""
    budget = _DOCUMENTS_READ
    for source, shard in zip(ranges, shards, strict=True):
        facts = shard.facts
        if len(source.files) == 1:
            names = ("stored_bytes", "documents", "tokens", "rejected", "skipped")
            yield source.files[0], FileCounts(**{name: facts[name] for name in names})
            continue
        budget -= facts["documents"] + facts["rejected"]
        if budget < 0:
            yield from ((path, None) for path in source.files)
            return
        yield from _counts_of_several(source, shard)


def _counts_of_several(source: SourceRange, shard: Manifest) -> Iterator[tuple[str, FileCounts]]:
    skipped = 0 if shard.facts["skipped"] == 0 else None
    counts = {path: FileCounts(skipped=skipped) for path in source.files}
    for piece in source.pieces:
        counts[piece.path].stored_bytes += piece.size
    for path, found in counts_by_file(shard.path(DOCUMENTS)).items():
        counts[path].documents, counts[path].tokens = found.documents, found.tokens
    if shard.facts["rejected"]:
        _add_rejects(counts, shard.path(REJECTS))
    yield from counts.items()


def _add_rejects(counts: dict[str, FileCounts], path: Path) -> None:
    with path.open("rb") as lines:
        for line in lines:
            reject = Reject(**json.loads(line))
            counts[reject.file].rejected += not reject.is_fault

"""Metadata of a corpus: its files, what became of each, its documents, and what reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

import dagster as dg

from nanoset_assets.ui.metadata import ROWS_SHOWN, code, markdown, per_second, place, size_bytes, table
from nanoset_assets.ui.previews import first_documents, first_rejects
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.indexed import shards_of
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.tokenization import losses
from nanoset_core.raw.contents import Notice
from nanoset_core.raw.endings import suffix_of
from nanoset_core.raw.pieces import Inventory, SourceRange, cut_ranges
from nanoset_core.raw.rejects import Reject
from nanoset_core.serialization.text import format_bytes, format_count
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.tokenization.distrust import described, encoders_of
from nanoset_core.tokenization.document_table import counts_by_file
from nanoset_core.tokenization.line_numbers import LineNumbers
from nanoset_core.tokenization.shards import DOCUMENTS, REJECTS

_BAR = 24
"""Characters of the longest bar."""
_DOCUMENTS_READ = 2_000_000
"""Most documents whose rows are read for a table: some tenths of a second."""


def raw_metadata(
    project: Project, before: Inventory | None, inventory: Inventory, notices: Sequence[Notice]
) -> dict[str, Any]:
    """Return the metadata of an inventory; `before` is the previous one, `notices` are about files."""
    sizes: Counter[str] = Counter()
    for piece in inventory.pieces:
        sizes[piece.path] += piece.size
    kinds = Counter(map(suffix_of, sizes))
    named = ", ".join(f"{count:,} {suffix}" for suffix, count in kinds.most_common())
    files = [{"file": path, "stored": format_bytes(size)} for path, size in islice(sizes.items(), ROWS_SHOWN)]
    ignored = [{"file": path} for path in inventory.ignored[:ROWS_SHOWN]]
    return {
        "summary": markdown(
            f"**{format_count(len(sizes), 'file')}** ({named}), {format_bytes(inventory.size)} as stored.",
            *(f"**{notice.files:,}** {code(notice.text.partition(' ')[2])}" for notice in notices),
        ),
        "changed_since_the_last": what_changed(before, inventory),
        "listing": table(files, len(sizes)),
        **({"not_read": table(ignored, len(inventory.ignored))} if ignored else {}),
        "files": len(sizes),
        "stored_bytes": inventory.size,
        "ignored_files": len(inventory.ignored),
        "folder": place(project, str(project.config.corpus_folder(inventory.corpus))),
    }


def what_changed(before: Inventory | None, after: Inventory) -> str:
    """Return how the files differ from those of an earlier inventory."""
    if before is None:
        return "the first inventory"
    old, new = _digests(before), _digests(after)
    counts = {
        "added": len(new.keys() - old.keys()),
        "removed": len(old.keys() - new.keys()),
        "changed": sum(old[path] != digests for path, digests in new.items() if path in old),
    }
    return ", ".join(f"{format_count(count, 'file')} {what}" for what, count in counts.items() if count) or "nothing"


def _digests(inventory: Inventory) -> dict[str, list[str]]:
    digests: dict[str, list[str]] = {}
    for piece in inventory.pieces:
        digests.setdefault(piece.path, []).append(piece.digest)
    return digests


def tokenized_metadata(
    project: Project,
    manifest: Manifest,
    shards: Sequence[Manifest],
    made: Collection[str],
    *,
    seconds: float,
    engine: str,
) -> dict[str, Any]:
    """Return the metadata of a corpus's shards, in document order; those of the digests `made` were made in these
    seconds."""
    facts = manifest.facts
    speed = per_second(sum(shard.facts["tokens"] for shard in shards if shard.digest in made), seconds)
    count = format_count(len(shards), "shard")
    work = f"{len(made):,} of {count} made in {seconds:,.1f} s, {speed:,.0f} tokens a second."
    if not made:
        work = f"Nothing was tokenized: {count} had been made before."
    reasons = [{"reason": reason, "lines": f"{count:,}"} for reason, count in facts["reasons"].items()]
    columns = ("documents", "tokens", *(["rejected"] if facts["rejected"] else []))
    rows = [
        {"shard": shard.digest, "stored": format_bytes(shard.facts["stored_bytes"])}
        | {name: f"{shard.facts[name]:,}" for name in columns}
        for shard in shards[:ROWS_SHOWN]
    ]
    return {
        "summary": markdown(_tokenized(facts), *_lost(project, manifest), work),
        **length_metadata(facts["length_histogram"], facts["tokens"]),
        **(
            {"rejects": table(reasons), "first_rejected": first_rejects(shards, LineNumbers.of(facts))}
            if reasons
            else {}
        ),
        **_files(project, manifest, shards),
        "dagster/partition_row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "tokens", "lines", "skipped", "rejected")},
        "unreadable_files": facts["faults"],
        "rejected_fraction": round(facts["rejected"] / max(facts["lines"], 1), 6),
        "tokens_per_document": round(facts["tokens"] / max(facts["documents"], 1), 1),
        "read_bytes": facts["read_bytes"],
        "size_bytes": sum(size_bytes(shard) for shard in shards),
        "shards_made": len(made),
        **({"tokens_per_second": speed} if made else {}),  # a plot over time shows the speed of work only
        "engine": engine,
        **({"made_by": described(encoders)} if (encoders := encoders_of(shards)) else {}),
        "shards": table(rows, len(shards)),
    }


def length_metadata(counts: Sequence[int], tokens: int) -> dict[str, Any]:
    """Return documents by length as a table with bars, and the usual length.

    Args:
        counts: entry b is the documents of 2^(b-1) to 2^b - 1 tokens, entry 0 the empty ones.
        tokens: of all documents.
    """
    documents, reached = sum(counts), list(accumulate(counts))
    if not documents:
        return {}
    ends = [((1 << b) >> 1, (1 << b) - 1) for b in range(len(counts))]
    middle = next(b for b, count in enumerate(reached) if count >= (documents + 1) // 2)
    filled = [b for b, count in enumerate(counts) if count]
    rows = [
        {
            "tokens": f"{ends[b][0]:,} to {ends[b][1]:,}",
            "documents": f"{counts[b]:,}",
            "share": "█" * -(-counts[b] * _BAR // max(counts)),
        }
        for b in range(filled[0], filled[-1] + 1)
    ]
    least, most = ends[middle]
    usual = f"{tokens / documents:,.0f} tokens on average, the median between {least:,} and {most:,}"
    return {"usual_length": usual, "token_lengths": table(rows)}


def _tokenized(facts: Mapping[str, Any]) -> str:
    parts = [f"{facts['rejected']:,} of {format_count(facts['lines'], 'line')} rejected"]
    parts += [f"{format_count(facts['skipped'], 'document')} without tokens skipped"] if facts["skipped"] else []
    return f"{_counts(facts)} of {format_bytes(facts['read_bytes'])} of lines; {', '.join(parts)}."


def _lost(project: Project, tokenized: Manifest) -> list[str]:
    """What was lost between files and tokens, in bold."""
    return [f"**Lost:** **{code(text)}**" for text in losses(project.outputs, tokenized).texts()]


def _counts(facts: Mapping[str, Any]) -> str:
    return f"**{format_count(facts['documents'], 'document')}, {format_count(facts['tokens'], 'token')}**"


def _files(project: Project, manifest: Manifest, shards: Sequence[Manifest]) -> dict[str, dg.MetadataValue[Any]]:
    """What became of each file, unless the raw folder was surveyed again meanwhile."""
    inventory_manifest, inventory = raw.current_inventory(project, manifest.name)
    if inventory_manifest.digest != manifest.recipe["parents"]["inventory"]:
        return {}
    files = tokenized_files(inventory, manifest, shards)
    return {} if files is None else {"files": files}


def tokenized_files(
    inventory: Inventory, tokenized: Manifest, shards: Sequence[Manifest]
) -> dg.TableMetadataValue | None:
    """Return what became of the first files of a corpus; `shards` are all of them, in document order.

    A shard of one file says it in its manifest; of the others the tables of documents are read, up to a limit.
    None where the shards are not cut as the inventory's files would be today.
    """
    ranges = cut_ranges(inventory, tokenized.recipe["options"]["range_bytes"])
    if len(ranges) != len(shards):
        return None
    files: dict[str, Counter[str]] = {}
    for path, found in _found(ranges, shards):
        if found is None:
            files.pop(path, None)  # a part of it was not read
            continue
        files.setdefault(path, Counter()).update(found)
        if len(files) > ROWS_SHOWN:
            break
    return table([_file(path, found) for path, found in islice(files.items(), ROWS_SHOWN)], len(inventory.files))


def _file(path: str, found: Counter[str]) -> dict[str, str]:
    lines = found["documents"] + found["rejected"] + found["skipped"]
    return {
        "file": path,
        "stored": format_bytes(found["stored_bytes"]),
        "lines": "?" if found["skipped_somewhere"] else f"{lines:,}",
        **{name: f"{found[name]:,}" for name in ("documents", "rejected", "tokens")},
    }


def _found(ranges: Sequence[SourceRange], shards: Sequence[Manifest]) -> Iterator[tuple[str, Counter[str] | None]]:
    """Counts of each file in each shard; None for those of the first shard that is too much to read."""
    left = _DOCUMENTS_READ
    for source, shard in zip(ranges, shards, strict=True):
        facts = shard.facts
        if len(source.files) == 1:
            names = ("stored_bytes", "documents", "tokens", "rejected", "skipped")
            yield source.files[0], Counter({name: facts[name] for name in names})
            continue
        left -= facts["documents"] + facts["rejected"]
        if left < 0:
            yield from ((path, None) for path in source.files)
            return
        yield from _found_in_several(source, shard).items()


def _found_in_several(source: SourceRange, shard: Manifest) -> dict[str, Counter[str]]:
    # The manifest has but the sum of the documents that were skipped, and no table lists them.
    counts = {path: Counter(skipped_somewhere=shard.facts["skipped"]) for path in source.files}
    for piece in source.pieces:
        counts[piece.path]["stored_bytes"] += piece.size
    for path, found in counts_by_file(shard.path(DOCUMENTS)).items():
        counts[path].update(documents=found.documents, tokens=found.tokens)
    if shard.facts["rejected"]:
        with open_regular(shard.path(REJECTS)) as lines:
            for reject in (Reject(**json.loads(line)) for line in lines):
                counts[reject.file]["rejected"] += not reject.is_fault
    return counts


def dataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a corpus's merged dataset: its first documents, and what reads it."""
    facts = manifest.facts
    lost = [f"{format_count(facts['rejected'], 'line')} rejected"] if facts["rejected"] else []
    lost += [f"{format_count(facts['faults'], 'file')} not readable to the end"] if facts["faults"] else []
    shards = shards_of(project.outputs, manifest)
    summary = (
        f"{_counts(facts)}, {format_bytes(size_bytes(manifest))}; {', '.join(lost) or 'every line became a document'}."
    )
    return {
        "summary": markdown(summary, *_lost(project, shards), _readers(project, manifest.name)),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "sequences", "tokens", "rejected", "dtype")},
    }


def _readers(project: Project, corpus: str) -> str:
    config = project.config
    users = {
        "nanoset": [name for name, spec in config.nanosets.items() if corpus in spec.corpora],
        "webdataset": [name for name, spec in config.webdatasets.items() if corpus in spec.names],
    }
    named = [f"the {kind} {code(name)}" for kind, names in users.items() for name in names]
    if corpus in config.packed:
        named.append("its `.pbin`")
    return f"Read by {', '.join(named)}." if named else f"Nothing in {code(config.file.name)} reads it yet."


def packed_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a corpus's `.pbin`."""
    facts = manifest.facts
    left_out = f"; {format_count(facts['left_out'], 'document')} left out" if facts["left_out"] else ""
    size = format_bytes(size_bytes(manifest))
    return {
        "summary": markdown(f"{_counts(facts)} of {facts['token_bytes']} bytes each, {size}{left_out}."),
        "file": dg.MetadataValue.path(facts["file"]),
        "dagster/partition_row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "tokens", "token_bytes", "left_out")},
    }

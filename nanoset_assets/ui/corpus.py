"""Metadata of a corpus: its files, what became of each, its documents, and what reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import dagster as dg

from nanoset_assets.ui.metadata import ROWS_SHOWN, code, markdown, per_second, place, size_bytes, table
from nanoset_assets.ui.previews import first_documents, first_rejects
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.attributes.stage import COUNTS
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.shards.document_table import LineNumbers, counts_by_file
from nanoset_core.stages.shards.losses import read_rejects, stored_sizes
from nanoset_core.stages.shards.make import DOCUMENTS, REJECTS
from nanoset_core.stages.shards.shard_sets import losses
from nanoset_core.text.contents import Notice
from nanoset_core.text.endings import suffix_of
from nanoset_core.text.pieces import Inventory, SourceRange, cut_ranges
from nanoset_core.text.values import type_of
from nanoset_core.tokenizers.distrust import described, encoders_of

_BAR = 24
"""Characters of the longest bar."""
_DOCUMENTS_READ = 2_000_000
"""Most documents whose rows are read for a table: some tenths of a second."""


def raw_metadata(
    project: Project, before: Inventory | None, inventory: Inventory, notices: Sequence[Notice]
) -> dict[str, Any]:
    """Return the metadata of an inventory; `before` is the previous one, `notices` are about files."""
    sizes = stored_sizes(inventory.pieces)
    named = ", ".join(f"{count:,} {suffix}" for suffix, count in Counter(map(suffix_of, sizes)).most_common())
    files = ({"file": path, "stored": format_bytes(size)} for path, size in sizes.items())
    ignored = [{"file": path} for path in inventory.ignored]
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
    old, new = set(before.files), set(after.files)
    differ = {piece.path for piece in {*before.pieces} ^ {*after.pieces}}
    counts = {"added": len(new - old), "removed": len(old - new), "changed": len(old & new & differ)}
    return ", ".join(f"{format_count(count, 'file')} {what}" for what, count in counts.items() if count) or "nothing"


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
    lines = f"{facts['rejected']:,} of {format_count(facts['lines'], 'line')} rejected"
    lines += f", {format_count(facts['skipped'], 'document')} without tokens skipped" if facts["skipped"] else ""
    lines += f", {format_count(facts['purged'], 'erased document')} left out" if facts.get("purged") else ""
    reasons = [{"reason": reason, "lines": f"{count:,}"} for reason, count in facts["reasons"].items()]
    columns = ("documents", "tokens", *(["rejected"] if facts["rejected"] else []))
    rows = [
        {"shard": shard.digest, "stored": format_bytes(shard.facts["stored_bytes"])}
        | {name: f"{shard.facts[name]:,}" for name in columns}
        for shard in shards
    ]
    inventoried, inventory = current_inventory(project, manifest.name)
    is_same = inventoried.digest == manifest.recipe["parents"]["inventory"]  # or it was surveyed again meanwhile
    files = tokenized_files(inventory, manifest, shards) if is_same else None
    return {
        "summary": markdown(
            f"{_counts(facts)} of {format_bytes(facts['read_bytes'])} of lines; {lines}.",
            *_lost(project, manifest),
            work,
        ),
        **length_metadata(facts["length_histogram"], facts["tokens"]),
        **(
            {"rejects": table(reasons), "first_rejected": first_rejects(shards, LineNumbers.of(facts))}
            if reasons
            else {}
        ),
        **({} if files is None else {"files": files}),
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
    documents = sum(counts)
    if not documents:
        return {}
    filled = [b for b, count in enumerate(counts) if count]
    middle = next(b for b, reached in enumerate(accumulate(counts)) if 2 * reached >= documents)
    rows = [
        {
            "tokens": f"{1 << b >> 1:,} to {(1 << b) - 1:,}",
            "documents": f"{counts[b]:,}",
            "share": "█" * -(-counts[b] * _BAR // max(counts)),
        }
        for b in range(filled[0], filled[-1] + 1)
    ]
    median = f"the median between {1 << middle >> 1:,} and {(1 << middle) - 1:,}"
    return {"usual_length": f"{tokens / documents:,.0f} tokens on average, {median}", "token_lengths": table(rows)}


def _lost(project: Project, tokenized: Manifest) -> list[str]:
    """What was lost between files and tokens, in bold."""
    return [f"**Lost:** **{code(text)}**" for text in losses(project.outputs, tokenized).texts()]


def _counts(facts: Mapping[str, Any]) -> str:
    return f"**{format_count(facts['documents'], 'document')}, {format_count(facts['tokens'], 'token')}**"


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
    left = _DOCUMENTS_READ
    for source, shard in zip(ranges, shards, strict=True):
        if len(source.files) > 1:
            left -= shard.facts["documents"] + shard.facts["rejected"]
        if left < 0:  # a part of its first file may be in the shard before
            files.pop(source.files[0], None)
            break
        for path, found in _counts_by_file(source, shard).items():
            files.setdefault(path, Counter()).update(found)
        if len(files) > ROWS_SHOWN:
            break
    rows = [
        {
            "file": path,
            "stored": format_bytes(found["stored_bytes"]),
            "lines": "?"
            if found["skipped_somewhere"]
            else f"{found['documents'] + found['rejected'] + found['skipped'] + found['purged']:,}",
            **{name: f"{found[name]:,}" for name in ("documents", "rejected", "tokens")},
        }
        for path, found in files.items()
    ]
    return table(rows, len(inventory.files))


def _counts_by_file(source: SourceRange, shard: Manifest) -> dict[str, Counter[str]]:
    facts = shard.facts
    if len(source.files) == 1:
        names = ("stored_bytes", "documents", "tokens", "rejected", "skipped")
        only = Counter({name: facts[name] for name in names} | {"purged": facts.get("purged", 0)})
        return {source.files[0]: only}
    # The manifest has but the sum of the documents that were skipped, and no table lists them.
    counts = {path: Counter(skipped_somewhere=facts["skipped"]) for path in source.files}
    for path, size in stored_sizes(source.pieces).items():
        counts[path]["stored_bytes"] = size
    for path, found in counts_by_file(shard.path(DOCUMENTS)).items():
        counts[path].update(documents=found.documents, tokens=found.tokens)
    for reject in read_rejects(shard.path(REJECTS), LineNumbers()) if facts["rejected"] else ():
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
        "summary": markdown(summary, *_lost(project, shards), readers(project, manifest.name)),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "sequences", "tokens", "rejected", "dtype")},
    }


def readers(project: Project, corpus: str) -> str:
    """Return which outputs of nanoset.yaml read a corpus or view, in words."""
    config = project.config
    users = {
        "nanoset": [name for name, spec in config.nanosets.items() if corpus in spec.corpora],
        "webdataset": [name for name, spec in config.webdatasets.items() if corpus in spec.names],
    }
    named = [f"the {kind} {code(name)}" for kind, names in users.items() for name in names]
    if corpus in config.pbin:
        named.append("its `.pbin`")
    named += [f"the export {code(name)}" for name, export in config.exports.items() if export.of == corpus]
    named += [f"the packs {code(name)}" for name, packs in config.packs.items() if packs.of == corpus]
    named += [f"the view {code(name)}" for name, view in config.views.items() if view.of == corpus]
    return f"Read by {', '.join(named)}." if named else f"Nothing in {code(config.file.name)} reads it yet."


def columns_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of what is known of each document of a corpus."""
    facts, columns = manifest.facts, manifest.facts["columns"]
    rows = [{"column": one["name"], "type": str(type_of(one["kind"])), "nulls": one["nulls"]} for one in columns]
    schema = dg.TableSchema([dg.TableColumn(row["column"], row["type"]) for row in rows])
    counted = ("documents", *COUNTS, "rows")
    return {
        "columns": table(rows, len(rows)),
        "dagster/column_schema": schema,
        "dagster/partition_row_count": facts["documents"],
        **{name: facts[name] for name in counted if name in facts},
        "size_bytes": facts["bytes"],
    }


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

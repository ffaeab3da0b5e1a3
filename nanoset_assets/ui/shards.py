"""The page of `tokenized_shards`: what became of each file, lost text, and speed.

A corpus is tokenized into shards, each with the token ids of some megabytes of text. The page sums
up what became of its lines, for example "**5,000 documents, 1,234,567 tokens** of 6.10 MB of lines;
3 of 5,003 lines rejected", and shows tables of raw files, rejected lines and lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.dataset import loss_texts
from nanoset_assets.ui.metadata import (
    ROWS_SHOWN,
    counts_text,
    facts_of,
    kept_names,
    markdown,
    per_second,
    size_bytes,
    table,
)
from nanoset_assets.ui.previews import first_rejects
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.disk import check_disk, stale_outputs
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.shards.file_counts import MAX_ROWS_READ, FileCounts, file_counts
from nanoset_core.stages.shards.lengths import length_rows, usual_length
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.make import SHARDS, engine_choice
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.text.pieces import Inventory
from nanoset_core.tokenizers.encoders import describe_encoders, encoders_of


def shards_page(run: AssetRun) -> dict[str, Any]:
    """Tokenize a corpus into shards, and return the metadata for the page of the asset in the UI.

    A shard is a folder with the tokens of a part of the corpus.

    Args:
        run: The run of the asset `tokenized_shards` for one corpus.

    Returns:
        Name → value, as Dagster's UI shows them; see `shards_metadata`.

    Raises:
        NanosetError: The corpus could not be tokenized, or the disk has too little free space.
    """
    project = run.project
    log = run.context.log
    # Refuse a run that would fill the disk. If `build_project` is set, the run belongs to a
    # `nanoset build`, which has checked that for all of its outputs.
    if run.project_defs.build_project is None:
        check_disk(project, stale_outputs(project, run.key.subject), log.info)

    # Each shard is a folder with its digest as name. Look up which exist before the run, to tell
    # which ones it makes.
    digests_before = kept_names(project, project.outputs.folder / SHARDS / run.key.subject)
    manifest = run.make()
    new_digests = set(manifest.facts["shards"]).difference(digests_before)

    # Log which implementation of the tokenizer is in use now. If the run found that one gives wrong
    # tokens, it recorded that, so that another one is chosen here.
    engine = engine_choice(project.config.tokenizer_file, project.config.tokenization.engine)
    log.info(f"engine {engine}")
    _log_rejects(run, manifest)

    shards = current_shards(project, manifest)
    return shards_metadata(
        project, manifest, shards, new_digests, seconds=run.seconds, engine=engine
    )


def _log_rejects(run: AssetRun, manifest: Manifest) -> None:
    """Log a warning if lines were rejected or files could not be read to the end.

    Args:
        run: The run, for its log.
        manifest: The tokenized corpus.
    """
    facts = manifest.facts  # what was counted when the output was made
    n_rejected = facts["rejected"]
    n_faults = facts["faults"]  # files that end in the middle, such as a truncated .gz
    if n_rejected or n_faults:
        n_lines = facts["lines"]
        reasons = facts["reasons"]  # those of the faults, too
        run.context.log.warning(f"rejected {n_rejected:,} of {n_lines:,} lines: {reasons}")


def shards_metadata(
    project: Project,
    manifest: Manifest,
    shards: Sequence[Manifest],
    new_digests: Collection[str],
    *,
    seconds: float,
    engine: str,
) -> dict[str, Any]:
    """Return what the UI shows of a tokenized corpus and its shards.

    Args:
        project: Its outputs are read.
        manifest: Manifest of the tokenized corpus, which lists the shards.
        shards: Manifests of its shards, in document order.
        new_digests: Digests of the shards that this run made; the others existed already.
        seconds: How long this run took.
        engine: The tokenizer engine of this run. Others may have made the earlier shards.

    Returns:
        Name → value: a summary in sentences, tables of lengths, rejected lines, raw files and
        shards, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
    new_tokens = sum(shard.facts["tokens"] for shard in shards if shard.digest in new_digests)
    tokens_per_second = per_second(new_tokens, seconds)

    # A summary in sentences: the corpus, text that is missing from it, and what this run did.
    losses = loss_texts(project, manifest)
    work = _work_text(len(new_digests), len(shards), seconds, tokens_per_second)
    metadata: dict[str, Any] = {"summary": markdown(_corpus_text(facts), *losses, work)}

    # Tables: lengths of documents, rejected lines, and files.
    metadata |= length_metadata(facts["length_histogram"], facts["tokens"])
    metadata |= _reject_metadata(manifest, shards)
    metadata |= _file_metadata(project, manifest, shards)

    # Numbers that Dagster plots over time. Without new shards there is no speed to plot.
    metadata |= _number_metadata(manifest)
    metadata["size_bytes"] = sum(size_bytes(shard) for shard in shards)
    metadata["shards_made"] = len(new_digests)
    if new_digests:
        metadata["tokens_per_second"] = tokens_per_second

    metadata |= _engine_metadata(shards, engine)
    metadata["shards"] = _shards_table(shards, has_rejects=bool(facts["rejected"]))
    return metadata


def _corpus_text(facts: Mapping[str, Any]) -> str:
    """Return the counts of a tokenized corpus in a sentence.

    Args:
        facts: Counts of the tokenized corpus. `read_bytes` are the bytes of its lines.
    """
    text_bytes = format_bytes(facts["read_bytes"])
    return f"{counts_text(facts)} of {text_bytes} of lines; {_lines_text(facts)}."


def _work_text(n_new: int, n_shards: int, seconds: float, tokens_per_second: float) -> str:
    """Return what a run has done in a sentence.

    Args:
        n_new: Shards that it has made.
        n_shards: All shards of the corpus.
        seconds: How long it took.
        tokens_per_second: Its speed.
    """
    all_shards = format_count(n_shards, "shard")
    if n_new == 0:
        return f"Nothing was tokenized: all {all_shards} existed already."
    return (
        f"{n_new:,} of {all_shards} made in {seconds:,.1f} s, "
        f"{tokens_per_second:,.0f} tokens a second."
    )


def _engine_metadata(shards: Sequence[Manifest], engine: str) -> dict[str, str]:
    """Return the tokenizer engine of this run, and if known, the programs that made the shards.

    Args:
        shards: The shards of a corpus. Those of older versions do not record a program.
        engine: Name of the engine of this run.
    """
    encoders = encoders_of(shards)
    if not encoders:
        return {"engine": engine}
    return {"engine": engine, "made_by": describe_encoders(encoders)}


def _reject_metadata(manifest: Manifest, shards: Sequence[Manifest]) -> dict[str, Any]:
    """Return how many lines were rejected for each reason, and the first rejected lines.

    Args:
        manifest: The tokenized corpus.
        shards: Its shards, in document order, which store the rejected lines.
    """
    n_lines_by_reason = manifest.facts["reasons"]  # counted when the corpus was tokenized
    if not n_lines_by_reason:
        return {}
    rows: list[dict[str, str]] = []
    for reason, n_lines in n_lines_by_reason.items():
        rows.append({"reason": reason, "lines": f"{n_lines:,}"})
    return {
        "rejects": table(rows),
        "first_rejected": first_rejects(shards, LineNumbers.of(manifest.facts)),
    }


def _file_metadata(
    project: Project, manifest: Manifest, shards: Sequence[Manifest]
) -> dict[str, Any]:
    """Return metadata for the UI: a table with the documents and rejected lines of each raw file.

    Args:
        project: The project.
        manifest: Manifest of the tokenized corpus, the record of its files and counts.
        shards: Its shards, in document order.

    Returns:
        The table under the key "files". Empty if the raw files have changed since they were
        tokenized, or if there are so many that counting would take too long.
    """
    # An inventory is a list of raw files; the recipe names the one from which the shards were made.
    inventory_manifest, inventory = current_inventory(project, manifest.name)
    if inventory_manifest.digest != manifest.recipe["parents"]["inventory"]:
        # The files changed during this run: the new inventory does not list those that were read.
        return {}
    files = files_table(inventory, manifest, shards)  # None if it would take too long
    return {} if files is None else {"files": files}


def _number_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return the counts and shares of a tokenized corpus, which Dagster plots over time.

    Args:
        manifest: The tokenized corpus.
    """
    facts = manifest.facts  # what was counted when the output was made
    n_documents = facts["documents"]
    n_tokens = facts["tokens"]
    n_lines = facts["lines"]
    n_rejected = facts["rejected"]
    return {
        "dagster/partition_row_count": n_documents,
        **facts_of(manifest, "documents", "tokens", "lines", "skipped", "rejected"),
        "unreadable_files": facts["faults"],
        "rejected_fraction": round(n_rejected / max(n_lines, 1), 6),
        "tokens_per_document": round(n_tokens / max(n_documents, 1), 1),
        "read_bytes": facts["read_bytes"],
    }


def _lines_text(facts: Mapping[str, Any]) -> str:
    """Return how many lines of a corpus did not become documents, in words.

    Args:
        facts: The facts of the tokenized corpus.
    """
    n_rejected = facts["rejected"]
    n_skipped = facts["skipped"]
    n_purged = facts.get("purged", 0)  # this fact is omitted if it is zero
    lines = format_count(facts["lines"], "line")
    texts = [f"{n_rejected:,} of {lines} rejected"]
    if n_skipped:
        texts.append(f"{format_count(n_skipped, 'document')} without tokens skipped")
    if n_purged:
        texts.append(f"{format_count(n_purged, 'erased document')} left out")
    return ", ".join(texts)


def _shards_table(shards: Sequence[Manifest], *, has_rejects: bool) -> dg.TableMetadataValue:
    """Return a table with the size and the counts of each shard.

    Args:
        shards: The shards of a corpus, in document order.
        has_rejects: Whether lines were rejected. If so, the table has a column for them.
    """
    columns = ["documents", "tokens"]
    if has_rejects:
        columns.append("rejected")
    rows: list[dict[str, str]] = []
    for shard in shards:
        row = {"shard": shard.digest, "stored": format_bytes(shard.facts["stored_bytes"])}
        for column in columns:
            row[column] = f"{shard.facts[column]:,}"
        rows.append(row)
    return table(rows, len(rows))


def length_metadata(histogram: Sequence[int], tokens: int) -> dict[str, Any]:
    """Return a table of documents by length, and the typical length.

    Args:
        histogram: Entry b is the number of documents with 2^(b-1) to 2^b - 1 tokens; entry 0 is
            that of empty documents.
        tokens: Tokens of all documents.

    Returns:
        The metadata `usual_length` and `token_lengths`; empty if there are no documents.
    """
    if not any(histogram):
        return {}
    return {
        "usual_length": usual_length(histogram, tokens),
        "token_lengths": table(length_rows(histogram)),
    }


def files_table(
    inventory: Inventory,
    tokenized: Manifest,
    shards: Sequence[Manifest],
    *,
    max_rows_read: int = MAX_ROWS_READ,
) -> dg.TableMetadataValue | None:
    """Return a table of what became of the lines of each raw file.

    Args:
        inventory: The files of the corpus.
        tokenized: Manifest of the tokenized corpus.
        shards: Manifests of its shards, in document order.
        max_rows_read: How many rows of documents may be read for it.

    Returns:
        A table with a row for each of the first ROWS_SHOWN files, with its lines, documents,
        rejected lines and tokens. None if too many rows would have to be read.
    """
    counts_by_path = file_counts(
        inventory, tokenized, shards, max_files=ROWS_SHOWN, max_rows=max_rows_read
    )
    if counts_by_path is None:
        return None
    rows = [_file_row(path, counts) for path, counts in counts_by_path.items()]
    return table(rows, len(inventory.files))


def _file_row(path: str, counts: FileCounts) -> dict[str, str]:
    """Return the row of a raw file in the table of files.

    Args:
        path: Path of the file below the folder of its corpus.
        counts: What became of its lines.
    """
    # A shard of several files does not record which of them had skipped documents.
    lines = "?" if counts.lines is None else f"{counts.lines:,}"
    return {
        "file": path,
        "stored": format_bytes(counts.stored_bytes),
        "lines": lines,
        "documents": f"{counts.documents:,}",
        "rejected": f"{counts.rejected:,}",
        "tokens": f"{counts.tokens:,}",
    }

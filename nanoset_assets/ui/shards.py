"""The page of `tokenized_shards`: what became of each file, lost text, and speed.

A corpus is tokenized into shards, each with the token ids of some megabytes of text. The page sums
up what became of its lines, for example "**5,000 documents, 1,234,567 tokens** of 6.10 MB of lines;
3 of 5,003 lines rejected", and shows tables of raw files, rejected lines and lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import (
    ROWS_SHOWN,
    counts_text,
    facts_of,
    kept_names,
    markdown,
    per_second,
    table,
)
from nanoset_assets.ui.previews import first_rejects
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.dry_run.disk import check_disk, stale_outputs
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards.file_counts import MAX_ROWS_READ, FileCounts, file_counts
from nanoset_core.stages.shards.lengths import length_rows, usual_length
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.names import SHARDS_FOLDER
from nanoset_core.stages.shards.one_shard import engine_choice
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.show import tokenized_summary
from nanoset_core.stages.stage import size_bytes
from nanoset_core.text.inventory.pieces import Inventory
from nanoset_core.tokenizers.encoders import describe_encoders, encoders_of
from nanoset_core.wording import format_bytes, format_count


def shards_page(run: AssetRun) -> dict[str, Any]:
    """Tokenize a corpus (a collection of documents), and return what Dagster's UI shows of it.

    The tokens are stored in shards, folders for some megabytes of text each. If only some text is
    new, only its shards are made.

    Args:
        run: Executes the Dagster asset `tokenized_shards` for one corpus. `run.make()` tokenizes
            it, and returns its manifest: the record that lists the shards, with what was counted.

    Returns:
        What the page of the asset shows: heading → value. See `shards_metadata`.

    Raises:
        NanosetError: The corpus could not be tokenized, or the disk has too little free space.
    """
    project = run.project
    _check_disk_of_run(run)
    existing_digests = _existing_digests(run)
    manifest = run.make()
    new_digests = set(manifest.facts[SHARDS]).difference(existing_digests)

    engine = _log_engine(run)
    _log_rejects(run, manifest)

    # There may be 100,000 manifests of shards: read them once, for the summary and the page.
    shards = current_shards(project, manifest)
    run.summary = tokenized_summary(project, manifest, shards)
    return shards_metadata(
        project, manifest, shards, new_digests, seconds=run.seconds, engine=engine
    )


def _existing_digests(run: AssetRun) -> Collection[str]:
    """Return the names of the shards of a corpus that exist before a run tokenizes it.

    A shard is a folder with the tokens of some megabytes of text. Its name is a digest (hash) of
    what it is made from, so a run makes only those shards whose names do not exist yet.

    Args:
        run: The run that is about to tokenize the corpus. If the user wants all shards to be made
            again, the result is empty.
    """
    corpus = run.key.subject
    return kept_names(run.project, run.project.outputs.folder / SHARDS_FOLDER / corpus)


def _log_engine(run: AssetRun) -> str:
    """Log which program has tokenized the text in a run, and return its name.

    Call this after the run: if the run notices that a fast program gives wrong tokens, it uses
    another one.

    Args:
        run: The run, with its settings and its log.
    """
    config = run.project.config
    engine = engine_choice(config.tokenizer_file, config.tokenization.engine)
    run.context.log.info(f"engine {engine}")
    return engine


def _check_disk_of_run(run: AssetRun) -> None:
    """Refuse a run that would fill the disk.

    Args:
        run: The run that is about to tokenize a corpus.

    Raises:
        StorageError: The disk has clearly too little free space.
    """
    is_run_of_build_command = run.project_defs.build_project is not None
    if is_run_of_build_command:
        return  # `nanoset build` has checked the disk for all of its runs together
    outputs = stale_outputs(run.project, run.key.subject)
    check_disk(run.project, outputs, run.context.log.info)  # logs warnings


def _log_rejects(run: AssetRun, manifest: Manifest) -> None:
    """Log a warning in Dagster if some of the raw text could not be read.

    - A line that is no valid JSON, for example, is rejected. The rest of its file is read.
    - A file can be damaged, such as a .gz that was not copied completely. Then its end is missing.

    For example: "rejected 3 of 5,003 lines: {'invalid_json': 3}".

    Args:
        run: Has the log of the run.
        manifest: The record of the tokenized text, in which the cases are counted.
    """
    facts = manifest.facts  # what was counted when the output was made
    n_rejected = facts["rejected"]
    n_damaged_files = facts["faults"]
    if n_rejected or n_damaged_files:
        n_lines = facts["lines"]
        reasons = facts["reasons"]  # reason → how many lines or files
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
    """Return what Dagster's UI shows after a corpus (a collection of documents) was tokenized.

    For example:

        summary              "**5,000 documents, 1,234,567 tokens** of 6.10 MB of lines; …"
        token_lengths        a table: how many documents have 64 to 127 tokens, …
        rejects              a table: 3 lines are no valid JSON
        files                a table: documents and rejected lines of each raw file
        documents            5000
        rejected_fraction    0.0006
        tokens_per_second    900000.0
        shards               a table of the folders with the tokens

    Args:
        project: Gives access to the list of raw files.
        manifest: The record of the tokenized corpus, which lists the shards.
        shards: The records of the shards, each a folder with the tokens of some megabytes of text.
        new_digests: Names of the folders that this run made; the others existed already.
        seconds: How long this run took.
        engine: Which implementation of the tokenizer this run has used.

    Returns:
        Heading → value, as in the example. Dagster plots the numbers over time.
    """
    facts = manifest.facts  # what was counted when the output was made
    new_tokens = sum(shard.facts["tokens"] for shard in shards if shard.digest in new_digests)
    tokens_per_second = per_second(new_tokens, seconds)

    # A summary in sentences: the corpus, and what this run did.
    work = _work_text(len(new_digests), len(shards), seconds, tokens_per_second)
    metadata: dict[str, Any] = {"summary": markdown(_corpus_text(facts), work)}

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
    """Say in a sentence what became of a corpus when it was tokenized.

    For example: "**5,000 documents, 1,234,567 tokens** of 6.10 MB of lines; 3 of 5,003 lines
    rejected."

    Args:
        facts: What was counted. `read_bytes` is the size of the lines of raw text.
    """
    text_bytes = format_bytes(facts["read_bytes"])
    return f"{counts_text(facts)} of {text_bytes} of lines; {_lines_text(facts)}."


def _work_text(n_new: int, n_shards: int, seconds: float, tokens_per_second: float) -> str:
    """Say in a sentence how much of a corpus a run had to tokenize.

    A corpus is tokenized in shards of some megabytes of text. Those that exist already are used
    again:

        2 of 10 shards made in 12.3 s, 900,000 tokens a second.
        Nothing was tokenized: all 10 shards existed already.

    Args:
        n_new: How many shards the run has made.
        n_shards: How many shards the corpus has.
        seconds: How long the run took.
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
    """Return which programs have tokenized a corpus, as there are several for one tokenizer.

    Args:
        shards: The records of the tokenized parts of the corpus. Each names the program that has
            made it, perhaps in an earlier run.
        engine: Name of the program that this run uses, and why it was chosen.

    Returns:
        `engine`; and `made_by`, such as "tokenized by numpy 1.2; 1,024 documents compared with the
        tokenizers library". Parts of older versions name no program; if none does, it is left out.
    """
    metadata = {"engine": engine}
    programs = encoders_of(shards)
    if programs:
        metadata["made_by"] = describe_encoders(programs)
    return metadata


def _reject_metadata(manifest: Manifest, shards: Sequence[Manifest]) -> dict[str, Any]:
    """Return a table of how many lines of raw text were rejected, and why, and the first of them.

    For example:

        reason          lines
        invalid_json    2
        corrupt_gzip    1

    Args:
        manifest: The record of the tokenized text, which counts the lines by reason.
        shards: The records of its parts, in the order of the documents. Each has a list of the
            lines.

    Returns:
        The table as `rejects`, and the text of the first lines as `first_rejected`. Empty if no
        line was rejected.
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
    """Return a table of what became of each raw file of a text collection, if that is known.

    Args:
        project: Gives access to the current list of the raw files.
        manifest: The record of the tokenized text, with the list that it was made from.
        shards: The records of its parts, in the order of the documents.

    Returns:
        The table under the heading `files`; see `files_table`. Empty if there is none.
    """
    list_manifest, file_list = current_inventory(project, manifest.name)
    # If the list was replaced since the run started, it may have other files.
    digest_of_list_read = manifest.recipe["parents"]["inventory"]
    if list_manifest.digest != digest_of_list_read:
        return {}
    files = files_table(file_list, manifest, shards)
    if files is None:  # it would take too long to count
        return {}
    return {"files": files}


def _number_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return numbers about a tokenized corpus that Dagster plots over time.

    For example, `rejected_fraction` is 0.0006 if 3 of 5,003 lines were rejected. If a plot shows
    that it rises after some update of the raw files, they have a new mistake.

    Args:
        manifest: The record of the tokenized corpus, with what was counted.

    Returns:
        Such as `{"documents": 5000, "tokens": 1234567, "rejected": 3, "rejected_fraction": 0.0006,
        "tokens_per_document": 246.9, …}`.
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
    """Say how many lines of raw text did not become documents, and why.

    There are three reasons, of which the last two are left out if they do not occur:

        3 of 5,003 lines rejected               they are no valid JSON, for example
        2 documents without tokens skipped      their text is empty
        1 erased document left out              the user had it erased from all outputs

    Args:
        facts: What was counted when the text was tokenized.

    Returns:
        The clauses, with commas between them.
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
    """Return a table of the shards of a corpus: folders with the tokens of some megabytes of text.

        shard     stored     documents    tokens     rejected
        5f0c…     1.20 MB    2,500        610,000    3
        81ab…     1.27 MB    2,500        624,567    0

    Args:
        shards: The records of the shards, in the order of their documents.
        has_rejects: Whether any lines were rejected. If not, the last column is left out.
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
    """Return a table of how many documents are short or long, and the typical length.

    For example, of four documents one has 1 token, two have 2 or 3, and one has 4 to 7:

        number of the entry    0    1    2         3
        tokens                 0    1    2 to 3    4 to 7
        histogram              0    1    2         1          (how many documents)

    Args:
        histogram: Entry b counts the documents with 2^(b-1) to 2^b - 1 tokens; entry 0, the empty
            ones.
        tokens: Number of tokens of all documents together.

    Returns:
        A sentence as `usual_length`, and the table as `token_lengths`. Empty if there are no
        documents.
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

    For example:

        file         stored     lines    documents    rejected    tokens
        a.jsonl      3.10 MB    2,503    2,500        3           610,000
        b.jsonl      3.00 MB    2,500    2,500        0           624,567

    Tokens are stored in shards, which may have documents of several files. So to count them by
    file, a row for each document has to be read.

    Args:
        inventory: The list of the raw files.
        tokenized: The record of the tokenized text.
        shards: The records of the shards, in the order of their documents.
        max_rows_read: If more rows would have to be read, it would take too long for a page.

    Returns:
        The table, with at most ROWS_SHOWN (100) files; None if it would take too long.
    """
    counts_by_path = file_counts(
        inventory, tokenized, shards, max_files=ROWS_SHOWN, max_rows=max_rows_read
    )
    if counts_by_path is None:
        return None
    rows = [_file_row(path, counts) for path, counts in counts_by_path.items()]
    return table(rows, len(inventory.files))


def _file_row(path: str, counts: FileCounts) -> dict[str, str]:
    """Return what became of the lines of a raw file, as a row of a table.

    For example, `{"file": "a.jsonl", "stored": "3.10 MB", "lines": "2,503", "documents": "2,500",
    …}`.

    Args:
        path: Path of the file below the folder of its corpus.
        counts: What became of its lines. `lines` is None if it is not known how many there are.
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

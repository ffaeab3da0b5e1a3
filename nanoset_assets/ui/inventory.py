"""The page of `raw_jsonl`: the files of a corpus, and what changed since the last build.

An inventory lists the raw files of a corpus with their sizes and digests. Its page sums them up,
for example "**3 files** (2 .jsonl, 1 .txt), 12.0 MB as stored", and warns of files that are empty,
ignored, or still being written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import code, markdown, place, table
from nanoset_core.errors import FormatError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.changes import what_changed
from nanoset_core.stages.inventory.make import load_inventory, publish_inventory, survey_corpus
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.losses import stored_sizes
from nanoset_core.stages.stage import Key, find_current
from nanoset_core.text.files.endings import suffix_of
from nanoset_core.text.files.notices import Notice, notices_on
from nanoset_core.text.inventory.pieces import Inventory
from nanoset_core.wording import format_bytes, format_count


def inventory_page(run: AssetRun) -> dict[str, Any]:
    """List the raw files of a corpus, and return what Dagster's UI shows of them.

    A corpus is a collection of documents, in files that other programs write into its folder. The
    list, with checksums, decides which text has to be tokenized.

    If a sensor has requested the run, files that were changed just now are left out: some program
    may still be writing them. A user who requests it knows whether the files are complete.

    Args:
        run: Executes the Dagster asset `raw_jsonl` for one corpus, whose name is `run.key.subject`.

    Returns:
        What the page of the asset shows: heading → value. See `inventory_metadata`.

    Raises:
        NanosetError: The files could not be listed or read.
    """
    project = run.project
    corpus = run.key.subject
    inventory_before = _current_inventory(project, corpus)  # to show what has changed since
    inventory = survey_corpus(project, corpus, settled=run.is_automatic, executor=project.executor)
    manifest = publish_inventory(project, inventory)
    run.finish(manifest)

    # Warn of the files that were left out, and of files that are ignored, empty or cut off.
    notices = notices_on({"awaited": inventory.awaited})
    notices += corpus_notices(project, corpus)
    for notice in notices:
        run.warn(notice.text)
    return inventory_metadata(project, inventory_before, inventory, notices)


def _current_inventory(project: Project, corpus: str) -> Inventory | None:
    """Return the list of raw files of the last build, to show what has changed since then.

    Args:
        project: Gives access to the outputs of earlier builds.
        corpus: Name of the collection of documents.

    Returns:
        The list of files with their checksums; None if there is no earlier build, or if its list is
        damaged. That is no error: this run writes a new list.
    """
    try:
        manifest = find_current(project, INVENTORY, Key(corpus))
        return None if manifest is None else load_inventory(manifest)
    except FormatError:
        return None


def inventory_metadata(
    project: Project, before: Inventory | None, inventory: Inventory, notices: Sequence[Notice]
) -> dict[str, Any]:
    """Return what Dagster's UI shows of the list of a corpus's raw files.

    For example:

        summary                   "**3 files** (2 .jsonl, 1 .txt), 12.0 MB as stored. …"
        changed_since_the_last    "2 files added, 1 file changed"
        listing                   a table of the files and their sizes
        not_read                  a table of the files that are ignored, such as README.md
        files                     3
        stored_bytes              12000000
        ignored_files             1
        folder                    raw/web

    Args:
        project: Its settings say in which folder the raw files are.
        before: The list of the last build, or None if there is none.
        inventory: The new list.
        notices: What the user should know about some files, such as "2 files are empty: …".

    Returns:
        Heading → value, as in the example. `not_read` is left out if no file is ignored.
    """
    size_by_file = stored_sizes(inventory.pieces)  # compressed files count as they are stored
    corpus_folder = project.config.corpus_folder(inventory.corpus)
    notice_texts = map(_notice_text, notices)
    metadata: dict[str, Any] = {
        "summary": markdown(_summary(inventory, size_by_file), *notice_texts),
        "changed_since_the_last": what_changed(before, inventory),
        "listing": _listing(size_by_file),
    }
    if inventory.ignored:
        metadata["not_read"] = table({"file": path} for path in inventory.ignored)
    metadata["files"] = len(size_by_file)
    metadata["stored_bytes"] = inventory.size
    metadata["ignored_files"] = len(inventory.ignored)
    metadata["folder"] = place(project, str(corpus_folder))
    return metadata


def _listing(size_by_file: Mapping[str, int]) -> dg.TableMetadataValue:
    """Return a table of files and their sizes.

    Args:
        size_by_file: Path of each file → its size in bytes, as stored.
    """
    rows = [{"file": path, "stored": format_bytes(size)} for path, size in size_by_file.items()]
    return table(rows, len(rows))


def _summary(inventory: Inventory, size_by_file: Mapping[str, int]) -> str:
    """Return the number of files, by file extension, and their size, in a sentence.

    Args:
        inventory: The list of the files.
        size_by_file: Path of each file → its size in bytes, as stored.

    Returns:
        Such as "**3 files** (2 .jsonl, 1 .txt), 12.0 MB as stored."
    """
    files_by_suffix = Counter(map(suffix_of, size_by_file))
    kinds = [f"{count:,} {suffix}" for suffix, count in files_by_suffix.most_common()]
    files = format_count(len(size_by_file), "file")
    return f"**{files}** ({', '.join(kinds)}), {format_bytes(inventory.size)} as stored."


def _notice_text(notice: Notice) -> str:
    """Return a notice as Markdown: "2 files are empty" → "**2** `files are empty`"."""
    _, _, text = notice.text.partition(" ")  # without its first word, the number of files
    return f"**{notice.files:,}** {code(text)}"

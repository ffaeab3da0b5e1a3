"""Make the inventory of a corpus: the list of its files, divided into pieces with a digest each.

All outputs of a corpus depend on its inventory, so a changed file makes all of them stale. The
digests of each folder are stored, so that a file is read again only if its size, time or inode has
changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import NanosetError, SourceChangedError
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import Meter
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, despite_lost_copies
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.storage.leases import leased
from nanoset_core.storage.location import RawFolder
from nanoset_core.storage.os_errors import explained
from nanoset_core.text.contents import Contents
from nanoset_core.text.endings import format_of
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventories import QuietPeriod, known_inventory, take_inventory
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import Inventory, Piece, SourceRange

VERSION = 1
STAGE = "inventory"
INVENTORY_FILE = "inventory.json"


def make_inventory(project: Project, corpus: str) -> Manifest:
    """Survey a corpus, and make its inventory the current one.

    Raises:
        MissingError, InputError: The files cannot be listed or read, or there are none.
        SourceChangedError: A file changed while it was read.
    """
    inventory = survey_corpus(project, corpus, executor=project.executor)
    return publish_inventory(project, inventory)


def survey_corpus(
    project: Project, corpus: str, *, settled: bool = False, executor: Executor | None = None
) -> Inventory:
    """Return the inventory of a corpus's present files, without storing it.

    Args:
        project: The project.
        corpus: Name of the corpus.
        settled: Whether recently written files are treated as unchanged, since something may still
            write to them; see `quiet_period`.
        executor: Hashes the files; None for this process.

    Raises:
        MissingError, InputError: The files cannot be listed or read, or there are none.
        SourceChangedError: A file changed while it was read. Or, with `settled`, a file is being
            overwritten: its new content may be incomplete, and its old content no longer exists.
    """
    folder = project.config.corpus_folder(corpus)
    contents = list_contents(project, corpus)
    if settled:
        path = overwritten_file(project, corpus, contents.ordered)
        if path is not None:
            raise SourceChangedError(
                "something writes to this file, and its content of the last build was overwritten",
                where=folder / path,
                remedy="wait until the file is complete; or run `nanoset build`, which does not "
                "wait",
            )

    quiet = quiet_period(project, corpus) if settled else None
    meter = Meter(project.listener, "raw_jsonl", corpus, contents.size)
    with explained(project.outputs.folder):
        return take_inventory(
            folder,
            corpus,
            memory=fingerprint_memory(project, folder),
            progress=meter.advance,
            contents=contents,
            quiet=quiet,
            executor=executor,
        )


def quiet_period(project: Project, corpus: str) -> QuietPeriod | None:
    """Return the rule by which files are too new for a build that a sensor starts.

    They are too new if they were written within the last `automation.settle_seconds`. Such files
    are treated as the current inventory lists them.

    Returns:
        The rule, or None if the current inventory is damaged. All files are then read.
    """
    outputs = project.outputs
    try:
        current: Manifest | None = None
        if outputs.current_version(STAGE, corpus).exists:
            current = require_inventory(project, corpus)
        pieces = pieces_by_file(current)
    except NanosetError:
        return None
    return QuietPeriod(project.config.automation.settle_seconds, time.time_ns(), pieces)


def overwritten_file(project: Project, corpus: str, files: Iterable[FileStat]) -> str | None:
    """Return the path of a file that is being overwritten, or None.

    A sensor starts no build until there is none.

    Args:
        project: The project.
        corpus: Name of the corpus.
        files: The present files of the corpus.
    """
    quiet = quiet_period(project, corpus)
    if quiet is None:
        return None
    return quiet.overwritten(project.config.corpus_folder(corpus), files)


def remembered_inventory(
    project: Project, contents: Contents, quiet: QuietPeriod | None = None
) -> Inventory | None:
    """Return the inventory of files from stored digests, without reading the files.

    Args:
        project: The project.
        contents: The present files of a corpus.
        quiet: Rule for files that are treated as the current inventory lists them.

    Returns:
        The inventory, or None if the digest of a file is not stored.
    """
    folder = project.config.corpus_folder(contents.corpus)
    return known_inventory(contents, fingerprint_memory(project, folder), quiet)


def fingerprint_memory(project: Project, folder: RawFolder) -> FingerprintMemory:
    """Return the stored digests of a folder's files, which all corpora of the folder share.

    They are below the output root, so surveys on other machines use them, too.
    """
    access = project.outputs.access
    file = access.folder / STAGE / folder.name / ".fingerprints.json"
    return FingerprintMemory(file, access, folder)


def with_object_marks(
    project: Project, folder: RawFolder, ranges: Sequence[SourceRange]
) -> list[SourceRange]:
    """Add to ranges of raw text the versions of the tables that were hashed.

    A reader hashes files of lines while it reads them, to see that they are unchanged. Tables
    (Parquet files) are not read from start to end, so it compares their version instead. Only
    objects in a bucket have one: the mark, such as an ETag.

    Args:
        project: The project.
        folder: Folder of the corpus.
        ranges: Ranges of its files.

    Returns:
        The same ranges, with path → mark of their tables.
    """
    paths = {piece.path for source in ranges for piece in source.pieces}
    if isinstance(folder, Path) or all(format_of(path) == "lines" for path in paths):
        return list(ranges)

    memory = fingerprint_memory(project, folder)
    marked_ranges = []
    for source in ranges:
        marks: dict[str, int] = {}
        for piece in source.pieces:
            mark = None if format_of(piece.path) == "lines" else memory.mark(piece)
            if mark is not None:
                marks[piece.path] = mark
        marked_ranges.append(replace(source, marks=marks))
    return marked_ranges


def inventory_recipe(inventory: Inventory) -> Recipe:
    """Return the recipe of an inventory, which contains the digest of all names and bytes."""
    return Recipe(STAGE, inventory.corpus, VERSION, options={"content": inventory.digest})


def publish_inventory(project: Project, inventory: Inventory) -> Manifest:
    """Store an inventory, and make it the current one of its corpus."""
    outputs = project.outputs

    def write(folder: Path) -> Written:
        text = json.dumps(inventory.to_json(), indent=1)
        (folder / INVENTORY_FILE).write_text(text + "\n", encoding="utf-8")
        return Written({"files": len(inventory.files), "stored_bytes": inventory.size})

    def publish() -> Manifest:
        return outputs.make_current(outputs.commit(inventory_recipe(inventory), write))

    with leased(outputs.access, [inventory.corpus]):
        return despite_lost_copies(outputs.access, publish)


def require_inventory(project: Project, corpus: str) -> Manifest:
    """Return the manifest of a corpus's current inventory.

    Raises:
        MissingError: No inventory was made yet, or a file of it is missing or damaged.
    """
    return project.outputs.require(STAGE, corpus, remedy="run `nanoset build` first")


def current_inventory(project: Project, corpus: str) -> tuple[Manifest, Inventory]:
    """Return the manifest of a corpus's current inventory, and the inventory.

    Raises:
        MissingError: No inventory was made yet, or a file of it is missing or damaged.
    """
    manifest = require_inventory(project, corpus)
    return manifest, load_inventory(manifest)


def inventory_at(outputs: OutputRoot, corpus: str, digest: str) -> Inventory | None:
    """Return the version of a corpus's inventory with this digest, or None if it was deleted."""
    manifest = outputs.manifest_at(outputs.folder / STAGE / corpus / digest)
    return None if manifest is None else load_inventory(manifest)


def load_inventory(manifest: Manifest) -> Inventory:
    """Read the inventory that a manifest describes.

    Raises:
        FormatError: Its file is damaged.
    """
    return manifest.load(INVENTORY_FILE, Inventory.from_json)


def pieces_by_file(manifest: Manifest | None) -> dict[str, list[Piece]]:
    """Return the pieces of each file of an inventory.

    Args:
        manifest: Manifest of the inventory, or None if there is no inventory.

    Returns:
        Path → pieces; empty without an inventory.

    Raises:
        FormatError: The file of the inventory is damaged.
    """
    pieces: dict[str, list[Piece]] = {}
    if manifest is not None:
        for piece in load_inventory(manifest).pieces:
            pieces.setdefault(piece.path, []).append(piece)
    return pieces

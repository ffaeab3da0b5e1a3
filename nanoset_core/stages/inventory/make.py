"""Make the inventory of a corpus: the list of its files, divided into pieces with a digest each.

All outputs of a corpus depend on its inventory, so a changed file makes all of them stale. The
digests of each folder are stored, so that a file is read again only if its size, time or inode has
changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from nanoset_core.errors import NanosetError, SourceChangedError
from nanoset_core.execution.processes import Executor
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, despite_lost_copies
from nanoset_core.records.json_records import dump, from_plain
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.inventory.names import FOLDER, VERSION
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.in_use.leases import leased
from nanoset_core.storage.location import Location
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.places import takes_requests
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.endings import is_table
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.pieces import Inventory, Piece, SourceRange
from nanoset_core.text.inventory.take import QuietPeriod, known_inventory, take_inventory

INVENTORY_FILE = "inventory.json"


def make_inventory(project: Project, corpus: str) -> Manifest:
    """List the present files of a corpus with their checksums, in an inventory.

    Everything that is made from a corpus (a folder of texts) depends on this list. If a file
    changes, so does the list, and what was made from the file is built again.

    Args:
        project: The project.
        corpus: Name of the corpus.

    Returns:
        Manifest of the list, which is then the current one.

    Raises:
        MissingError: The folder of the corpus does not exist, or a file was deleted.
        InputError: The files cannot be listed or read, or there are none.
        SourceChangedError: A file changed while it was read.
    """
    inventory = survey_corpus(project, corpus, executor=project.executor)
    return publish_inventory(project, inventory)


def survey_corpus(
    project: Project, corpus: str, *, settled: bool = False, executor: Executor | None = None
) -> Inventory:
    """List the present files of a corpus with a digest of their content, without storing the list.

    A file is only read if its digest is not stored yet, or if the file has changed.

    Args:
        project: The project.
        corpus: Name of the corpus.
        settled: Whether to pass over the new content of files that were written a moment ago, since
            it may be incomplete. They are listed as in the current inventory, new ones not at all.
        executor: Hashes large files in worker processes; None hashes all in this process.

    Returns:
        The list, divided into pieces of files, each with the digest of its bytes.

    Raises:
        MissingError: The folder of the corpus does not exist, or a file was deleted.
        InputError: The files cannot be listed or read, or there are none.
        SourceChangedError: A file changed while it was read; or, with `settled`, one is being
            overwritten, so that neither its old nor its new content can be read.
    """
    folder = project.config.corpus_folder(corpus)
    contents = list_contents(project, corpus)
    # A file that was not written during the quiet period, some seconds, counts as complete.
    quiet_period: QuietPeriod | None = None
    if settled:
        _check_not_overwritten(project, corpus, contents)
        quiet_period = quiet_period_of(project, corpus)

    # Hash the files that have changed, and remember the digests of all.
    progress = project.progress.work("raw_jsonl", corpus, contents.size)
    with explained(project.outputs.folder):  # digests are stored there
        return take_inventory(
            folder,
            corpus,
            memory=fingerprint_memory(project, folder),
            progress=progress.advance,
            contents=contents,
            quiet=quiet_period,
            executor=executor,
        )


def _check_not_overwritten(project: Project, corpus: str, contents: Contents) -> None:
    """Check that no program is overwriting a file of a corpus, a folder of texts, at this moment.

    A build may start by itself when text changes, while a program still writes to a file. Then it
    reads only the text that the file had in the last build, and leaves the rest to a later build.
    That is not possible if the program does not append, but overwrites:

        text in the last build    AAAA BBBB
        now, appended to          AAAA BBBB CC…    AAAA BBBB is read
        now, overwritten          XXXX Y…          an error

    Args:
        project: The project.
        corpus: Name of the corpus.
        contents: The present files of the corpus.

    Raises:
        SourceChangedError: One of the files is being overwritten.
    """
    path = overwritten_file(project, corpus, contents.ordered)
    if path is not None:
        raise SourceChangedError(
            "something writes to this file, and its content of the last build was overwritten",
            where=project.config.corpus_folder(corpus) / path,
            remedy="wait until the file is complete; or run `nanoset build`, which does not wait",
        )


def quiet_period_of(project: Project, corpus: str) -> QuietPeriod | None:
    """Return how a build treats files that were written a moment ago, and may be incomplete.

    A build that starts by itself when text changes must not read a file that is still being
    written. With `automation.settle_seconds: 60`:

        written an hour ago              its present content
        written 10 seconds ago           its content of the last build
        new, written 10 seconds ago      left out until the next build

    Args:
        project: The project.
        corpus: Name of the corpus.

    Returns:
        The seconds, the present time, and the content of the last build. None if the record of the
        last build is damaged, so that all files have to be read as they are.
    """
    # The inventory is the list of the files that the last build has read.
    outputs = project.outputs
    inventory: Manifest | None = None  # before the first build
    try:
        if outputs.current_version(FOLDER, corpus).is_built:
            inventory = require_inventory(project, corpus)
        pieces_of_last_build = pieces_by_file(inventory)
    except NanosetError:
        return None
    return QuietPeriod(
        seconds=project.config.automation.settle_seconds,
        now_ns=time.time_ns(),
        previous_pieces=pieces_of_last_build,
    )


def overwritten_file(project: Project, corpus: str, files: Iterable[FileStat]) -> str | None:
    """Find a file of a corpus that a program is overwriting, so that a build has to wait for it.

    Only files that were written to in the last seconds are looked at, since they may be incomplete:

        text in the last build    AAAA BBBB
        now, appended to          AAAA BBBB CC…    no need to wait: AAAA BBBB can be used
        now, overwritten          XXXX Y…          returned: the old text is gone

    Args:
        project: The project, whose settings say how many seconds.
        corpus: Name of the corpus, a folder of texts.
        files: The present files of the corpus.

    Returns:
        Path of the first such file, such as "a.jsonl"; None if there is none.
    """
    quiet_period = quiet_period_of(project, corpus)
    if quiet_period is None:  # the text of the last build is not known
        return None
    return quiet_period.overwritten(project.config.corpus_folder(corpus), files)


def remembered_inventory(
    project: Project, contents: Contents, quiet: QuietPeriod | None = None
) -> Inventory | None:
    """Return the list of a corpus's files with their digests, if none of them has to be read.

    Sensors look every few minutes whether text has changed, and cannot read terabytes for that. So
    each digest is stored with the size and times that its file had. While the file has the same
    size and times, the digest is valid.

    Args:
        project: The project.
        contents: The present files of the corpus.
        quiet: How to treat files that were written a moment ago; None if all count as complete.

    Returns:
        The list; None if a file has no valid digest.
    """
    folder = project.config.corpus_folder(contents.corpus)
    stored_digests = fingerprint_memory(project, folder)
    return known_inventory(contents, stored_digests, quiet)


def fingerprint_memory(project: Project, folder: Location) -> FingerprintMemory:
    """Return the stored digests of a folder's files, which all corpora of the folder share.

    They are below the output root, so surveys on other machines use them, too.

    Args:
        project: The project.
        folder: The folder of raw text.
    """
    access = project.outputs.access
    file = access.folder / FOLDER / folder.name / ".fingerprints.json"
    return FingerprintMemory(file, access, folder)


def forget_digests(project: Project, corpora: Iterable[str]) -> None:
    """Forget the digests of all files of some corpora, so that the next survey reads these files.

    A file that was overwritten may have the size and the modification time that it had before, for
    example if `rsync --inplace --times` did it. So it looks unchanged. A user who knows better asks
    for a rebuild. Files in buckets are left out, since a change always shows.

    Args:
        project: The project.
        corpora: Names of the corpora.
    """
    folders = {project.config.corpus_folder(corpus) for corpus in corpora}
    # In a bucket, each version of a file has its own ETag. Do not download all files only for this.
    folders = {folder for folder in folders if not takes_requests(folder)}
    with explained(project.outputs.folder):  # digests are stored there
        for folder in folders:
            fingerprint_memory(project, folder).clear()


def with_object_marks(
    project: Project, folder: Location, ranges: Sequence[SourceRange]
) -> list[SourceRange]:
    """Add to ranges of text which version of each Parquet or Arrow file in a bucket was hashed.

    Whoever reads the text later must notice if a file has changed since it was hashed:

        a.jsonl      all of it is read, so its hash is computed again
        b.parquet    only some columns are read, so the mark of the file is compared: a number that
                     changes with each version of an object in a bucket

    So the range with these two files gets the marks {"b.parquet": 1718021234}.

    Args:
        project: The project.
        folder: Folder of the corpus.
        ranges: Ranges of the files of the corpus, which have no marks yet.

    Returns:
        The ranges with these marks. There are none if the folder is on a disk, or has no such
        files.
    """
    # A mark is computed from the ETag that a bucket gives to an object. Loading the stored marks
    # takes time, so do not if the ranges have no Parquet or Arrow files.
    if not takes_requests(folder) or not _have_tables(ranges):
        return list(ranges)

    memory = fingerprint_memory(project, folder)
    return [replace(source, marks=_marks_of_tables(source, memory)) for source in ranges]


def _have_tables(ranges: Sequence[SourceRange]) -> bool:
    """Return whether ranges of text have a Parquet or Arrow file."""
    pieces = chain.from_iterable(source.pieces for source in ranges)
    return any(is_table(piece.path) for piece in pieces)


def _marks_of_tables(source: SourceRange, memory: FingerprintMemory) -> dict[str, int]:
    """Return which version of each Parquet and Arrow file of a range of text was hashed.

    Objects in a bucket can be replaced. A mark is a number that changes with each version of an
    object. By it, a later reader notices that the file is not the one that was hashed:

        files of the range    web/a.parquet, web/b.jsonl
        result                {"web/a.parquet": 1718021234}

    (b.jsonl needs no mark. It is read completely, so the reader can compare its hash.)

    Args:
        source: The range of raw text.
        memory: The stored hashes and marks of the files.

    Returns:
        Path of the file → the mark that the object had when it was hashed. Files whose mark is not
        known are left out.
    """
    mark_by_path: dict[str, int] = {}
    for piece in source.pieces:
        if not is_table(piece.path):
            continue
        mark = memory.mark(piece)
        if mark is not None:
            mark_by_path[piece.path] = mark
    return mark_by_path


def inventory_recipe(inventory: Inventory) -> Recipe:
    """Return the recipe of an inventory, which is the list of a corpus's files with their digests.

    The recipe has a digest of all names and bytes, so each change of the files gives a new version.

    Args:
        inventory: The inventory.
    """
    return Recipe(FOLDER, inventory.corpus, VERSION, options={"content": inventory.digest})


def publish_inventory(project: Project, inventory: Inventory) -> Manifest:
    """Store the list of a corpus's files with their digests, and make it the current one.

    The list is the inventory of the corpus. Its folder is named by a digest of the list:

        inventory/web/3f9c…/    of last week
        inventory/web/a07e…/    of today, which is current now

    If the files are those of last week again, the folder 3f9c… becomes current again.

    Args:
        project: The project.
        inventory: The inventory.

    Returns:
        The manifest of the inventory, a file that describes it.
    """
    store = partial(_store_as_current, project.outputs, inventory)
    access = project.outputs.access
    # `nanoset gc` deletes outputs that are not current. So that it does not delete this one before
    # it has become current, leave a note (a lease) that outputs of the corpus are in use.
    with leased(access, [inventory.corpus]):
        # Another process may delete local copies of files in a bucket, to make room. Then `store`
        # is called again.
        return despite_lost_copies(access, store)


def _store_as_current(outputs: OutputRoot, inventory: Inventory) -> Manifest:
    """Store an inventory, unless this version is stored already, and make it the current one."""
    write = partial(_write_inventory, inventory)
    manifest = outputs.commit(inventory_recipe(inventory), write)
    return outputs.make_current(manifest)


def _write_inventory(inventory: Inventory, folder: Path) -> Written:
    """Write an inventory into a new folder, and return its counts."""
    (folder / INVENTORY_FILE).write_bytes(dump(inventory))
    return Written({"files": len(inventory.files), "stored_bytes": inventory.size})


def require_inventory(project: Project, corpus: str) -> Manifest:
    """Return the manifest of a corpus's current inventory: the list of its files.

    Args:
        project: The project.
        corpus: Name of the corpus.

    Raises:
        MissingError: No inventory was made yet, or a file of it is missing or damaged.
    """
    return project.outputs.require(FOLDER, corpus, remedy="run `nanoset build` first")


def current_inventory(project: Project, corpus: str) -> tuple[Manifest, Inventory]:
    """Return the list of files from which the current outputs of a corpus are made.

    This inventory has the files as they were at the last build, divided into pieces with checksums.
    The present files of the corpus, a folder of texts, may be others.

    Args:
        project: The project.
        corpus: Name of the corpus.

    Returns:
        The manifest of the inventory, and the inventory.

    Raises:
        MissingError: No inventory was made yet, or a file of it is missing or damaged.
        FormatError: The file of the inventory is damaged.
    """
    manifest = require_inventory(project, corpus)
    return manifest, load_inventory(manifest)


def current_inventory_recipes(project: Project, corpora: Iterable[str]) -> dict[str, Recipe]:
    """Return what identifies the files with which each text collection (corpus) was last built.

    A sensor compares this with the files that are in the folder of the corpus now.

    Args:
        project: Its outputs are read.
        corpora: Names of corpora, such as {"web", "books"}.

    Returns:
        Corpus → recipe, with a digest of all names and bytes of its files. Corpora that were never
        built are left out.
    """
    names = sorted(corpora)
    # The first output of a corpus is its inventory, a list of its files.
    versions = project.outputs.current_versions(FOLDER, names)
    recipes: dict[str, Recipe] = {}
    for corpus, version in zip(names, versions, strict=True):
        if version.whole_manifest is not None:
            recipes[corpus] = from_plain(Recipe, version.whole_manifest.recipe)
    return recipes


def inventory_at(outputs: OutputRoot, corpus: str, digest: str) -> Inventory | None:
    """Return the list of files that a corpus had at an earlier time, such as when it was tokenized.

    Each such list, an inventory, is stored below the digest of its content:

        inventory/web/0a1b/inventory.json      an earlier version
        inventory/web/77cd/inventory.json      the current one

    Args:
        outputs: The outputs of the project.
        corpus: Name of the corpus, a folder of texts.
        digest: Digest of the version, such as "0a1b".

    Returns:
        The inventory, or None if this version was deleted.

    Raises:
        FormatError: The file of the inventory is damaged.
    """
    manifest = outputs.manifest_at(outputs.folder / FOLDER / corpus / digest)
    return None if manifest is None else load_inventory(manifest)


def inventory_of(outputs: OutputRoot, manifest: Manifest) -> Inventory | None:
    """Return the list of files that an output of a corpus was made from, such as its shards.

    The present list may be another one: each change of a file gives a new version.

    Args:
        outputs: The outputs of the project.
        manifest: Manifest of the output. Its recipe has the digest of the list.

    Returns:
        The inventory, or None if this version was deleted.

    Raises:
        FormatError: The file of the inventory is damaged.
    """
    return inventory_at(outputs, manifest.name, manifest.recipe["parents"]["inventory"])


def load_inventory(manifest: Manifest) -> Inventory:
    """Read the inventory that a manifest describes.

    Args:
        manifest: The manifest.

    Raises:
        FormatError: The file of the inventory is damaged.
    """
    return manifest.load(INVENTORY_FILE, Inventory)


def pieces_by_file(manifest: Manifest | None) -> dict[str, list[Piece]]:
    """Read the list of a corpus's files, and return the pieces of each file.

    Args:
        manifest: Manifest of the inventory, or None if there is no inventory.

    Returns:
        Path → pieces; empty without an inventory.

    Raises:
        FormatError: The file of the inventory is damaged.
    """
    return {} if manifest is None else load_inventory(manifest).pieces_by_file

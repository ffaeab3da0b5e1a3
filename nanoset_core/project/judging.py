"""Decide which of the versions and files that nothing needs may be removed.

Only what nanoset certainly wrote is garbage. A version with a file that its manifest does not list,
an index file that no note lists, and everything behind a symbolic link is left alone and reported:
it may be somebody's only copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import MANIFEST, read_manifest
from nanoset_core.outputs.receipts import FILES, parse_receipt
from nanoset_core.outputs.root import CURRENT
from nanoset_core.project.existing import StoredOutput, shared_folders
from nanoset_core.project.garbage import Garbage, GarbageKind, LeftAlone, Policy
from nanoset_core.project.needed import Needed
from nanoset_core.records.text import format_count
from nanoset_core.stages.registry import stage_of
from nanoset_core.stages.stage import Resumable, uploaded_files
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.listing import Entry

_NOTE = "nanoset.json"
"""Ending of the notes next to index files, which list the files that nanoset wrote."""


def judge_all(
    listing: FileAccess, outputs: Sequence[StoredOutput], needed: Needed, policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Yield what nothing needs: garbage, or left alone if nanoset may not have written it.

    Args:
        listing: Access to the output root.
        outputs: All outputs below it.
        needed: The versions and files that have to stay.
        policy: Which shared files are kept because of their age.
    """
    for output in outputs:
        for digest in output.versions:
            if digest not in needed.digests:
                yield judge_version(listing, output, digest)
    yield from judge_all_shared_files(listing, outputs, needed, policy)


def judge_version(listing: FileAccess, output: StoredOutput, digest: str) -> Garbage | LeftAlone:
    """Decide whether a version that nothing needs is garbage: if nanoset wrote every file in it.

    Args:
        listing: Access to the output root.
        output: The output that the version belongs to.
        digest: Digest of the version.

    Returns:
        The version as garbage, or as left alone with the reason.
    """
    folder = output.folder / digest
    name = f"{output.stage_folder}/{output.name}"

    # Find out which files nanoset wrote: those that the manifest lists. An unfinished version has
    # no manifest, but its stage recognises the files.
    try:
        manifest = read_manifest(folder, listing)
    except (FormatError, OSError) as error:
        return LeftAlone(folder, f"its manifest cannot be read: {getattr(error, 'what', error)}")
    our_files: set[str] | None
    if manifest is None:
        our_files = _unfinished_files(listing, output, folder)
        if our_files is None:
            return LeftAlone(folder, "it has no manifest, and no markers of nanoset")
    else:
        our_files = {*manifest.files, MANIFEST}
        place = f"{manifest.stage}/{manifest.name}/{manifest.digest}"
        if place != f"{name}/{digest}":
            return LeftAlone(folder, f"its manifest is that of {place}")
    if _is_linked(listing, folder):
        return LeftAlone(folder, "a symbolic link leads to it")

    # Any other file makes the whole version stay: it may be somebody's only copy.
    size = 0
    for file, entry in files_below(listing, folder):
        if entry.is_link:
            return LeftAlone(folder, f"it holds a symbolic link: {file}")
        is_ours = file in our_files or Path(file).name.startswith(UNFINISHED)
        if not is_ours:
            return LeftAlone(folder, f"it holds a file that is not of nanoset: {file}")
        size += entry.size
    kind: GarbageKind = "unfinished" if manifest is None else "version"
    return Garbage(folder, name, output.subject, kind, size)


def _unfinished_files(listing: FileAccess, output: StoredOutput, folder: Path) -> set[str] | None:
    """Return the files of an unfinished version, if nanoset certainly wrote them.

    Args:
        listing: Access to the output root.
        output: The output that the version belongs to.
        folder: Folder of the version, which has no manifest.

    Returns:
        Paths below the folder; None if the files may be somebody else's.
    """
    stage = stage_of(output.stage_folder, output.name)
    if stage is None:
        return None
    if isinstance(stage, Resumable):
        return stage.unfinished_files(listing, folder)
    return uploaded_files(stage.layout, listing, folder)


def judge_all_shared_files(
    listing: FileAccess, outputs: Sequence[StoredOutput], needed: Needed, policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Yield the shared files that no needed version uses: as garbage, or as left alone.

    For example, all versions of a nanoset's splits share one folder, `cache`, with the index files
    of the trainer.

    Args:
        listing: Access to the output root.
        outputs: All outputs below it.
        needed: The versions and files that have to stay.
        policy: Which files are kept because of their age.
    """
    for stage_folder, shared_folder in shared_folders().items():
        # The outputs that share a folder have the same subject, such as one nanoset.
        outputs_by_subject: dict[str, list[StoredOutput]] = {}
        for output in outputs:
            if output.stage_folder == stage_folder:
                outputs_by_subject.setdefault(output.subject, []).append(output)

        for subject, outputs_of_subject in outputs_by_subject.items():
            place = f"{stage_folder}/{subject}/{shared_folder}"
            files = _shared_files(listing, listing.folder / place)

            # When did the last of these outputs get its current version? A file that is newer may
            # belong to a build that is running.
            current_since_ns = max(
                listing.written_ns(output.folder / CURRENT) for output in outputs_of_subject
            )
            needed_names = needed.shared_files.get((stage_folder, subject), set())
            old_names = []
            for name, entry in files.items():
                is_kept = policy.keeps(entry.written_ns, current_since_ns)
                if name not in needed_names and not is_kept:
                    old_names.append(name)
            yield from _judge_shared_files(listing, place, subject, files, old_names)


def _shared_files(listing: FileAccess, folder: Path) -> dict[str, Entry]:
    """Return the files of a shared folder by name, without unfinished ones."""
    files: dict[str, Entry] = {}
    for name, entry in files_below(listing, folder):
        if not name.startswith(UNFINISHED):
            files[name] = entry
    return files


def _judge_shared_files(
    listing: FileAccess,
    place: str,
    subject: str,
    files: Mapping[str, Entry],
    old_files: Collection[str],
) -> Iterator[Garbage | LeftAlone]:
    """Yield the files of a shared folder that nothing needs: nanoset's as garbage, others once.

    When nanoset writes index files, it also writes a note that lists them. So files that a note
    lists are garbage. All others are reported together, and not removed.

    Args:
        listing: Access to the output root.
        place: Path of the shared folder below the root.
        subject: The nanoset that the folder belongs to.
        files: All files in it, by name.
        old_files: Names of the files that nothing needs.
    """
    folder = listing.folder / place

    # Find the files that nanoset wrote, by the notes.
    our_files: set[str] = set()
    for name in files:
        if name.endswith(_NOTE):
            our_files |= _noted_files(listing, folder, name)

    # Leave all others alone, and everything that a symbolic link leads to.
    is_linked_folder = _is_linked(listing, folder)
    foreign: set[str] = set()
    for name in old_files:
        is_behind_link = is_linked_folder or files[name].is_link
        if is_behind_link or name not in our_files:
            foreign.add(name)
    if foreign:
        count = format_count(len(foreign), "file")
        size = sum(files[name].size for name in foreign)
        why = "that no note of ours lists, or that a symbolic link leads to"
        yield LeftAlone(folder, f"{count} ({size:,} bytes) {why}, such as {min(foreign)}")

    # Remove descriptions first and notes last: if a collection is cut short, the next one needs the
    # notes to recognise the remaining files.
    ours = [name for name in old_files if name not in foreign]
    ours.sort(key=lambda name: (name.endswith(_NOTE), "description" not in name, name))
    for name in ours:
        yield Garbage(folder / name, place, subject, "cache file", files[name].size)


def _noted_files(listing: FileAccess, folder: Path, note: str) -> set[str]:
    """Return the names of the index files that a note lists, and of the note itself.

    A note is a JSON file that nanoset writes next to the index files that it made. It lists them,
    and what they were made from.

    Args:
        listing: Access to the output root.
        folder: The folder of the index files.
        note: Name of the note in this folder.

    Returns:
        Names of files in the folder; empty if nanoset did not write the note.
    """
    try:
        parsed_note = parse_receipt(listing.read_current(folder / note))
    except OSError:
        return set()
    if parsed_note is None:
        return set()

    # A file of another program may be named like a note. Then it lacks what a note has.
    files = parsed_note.content.get(FILES)
    made_from = parsed_note.content.get("made_from")
    if not isinstance(files, Mapping) or not isinstance(made_from, Mapping):
        return set()
    return {note, *files}


def _is_linked(listing: FileAccess, folder: Path) -> bool:
    """Return whether a folder, or one between it and the output root, is a symbolic link."""
    folders = (folder, *folder.parents)
    folders_below_root = folders[: folders.index(listing.folder)]
    return any(listing.is_link(path) for path in folders_below_root)


def files_below(listing: FileAccess, folder: Path, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield every file and link below a folder; links are not followed.

    Args:
        listing: Access to the output root.
        folder: The folder.
        prefix: Path that precedes the names that are yielded.

    Yields:
        Path relative to the folder, and the entry.
    """
    for entry in listing.entries(folder):
        if entry.is_folder and not entry.is_link:
            yield from files_below(listing, folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry

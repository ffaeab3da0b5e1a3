"""Decide which of the versions and files that nothing needs may be removed.

Only what nanoset certainly wrote is garbage. A version with a file that its manifest does not list,
an index file that no note lists, and everything behind a symbolic link is left alone and reported:
it may be somebody's only copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, read_manifest
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
    """Decide what happens to each version and file that nothing needs.

    Args:
        listing: Access to the output root.
        outputs: All outputs below it.
        needed: The versions and files that have to stay.
        policy: Which shared files are kept because of their age.

    Yields:
        Each of them as garbage, which may be removed; or as left alone, if nanoset may not have
        written it.
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
    try:
        manifest = read_manifest(folder, listing)  # None for an unfinished version
    except (FormatError, OSError) as error:
        return LeftAlone(folder, f"its manifest cannot be read: {getattr(error, 'what', error)}")

    # Does anything show that nanoset wrote it, and at this place?
    our_files = _our_files(listing, output, folder, manifest)
    if our_files is None:
        return LeftAlone(folder, "it has no manifest, and no markers of nanoset")
    reason = _reason_of_other_place(listing, output, folder, manifest)
    if reason is not None:
        return LeftAlone(folder, reason)

    # Does it contain any other file? That may be somebody's only copy.
    entries = dict(files_below(listing, folder))
    reason = _reason_to_leave_alone(entries, our_files)
    if reason is not None:
        return LeftAlone(folder, reason)

    name = f"{output.stage_folder}/{output.name}"
    kind: GarbageKind = "unfinished" if manifest is None else "version"
    size = sum(entry.size for entry in entries.values())
    return Garbage(folder, name, output.subject, kind, size)


def _reason_of_other_place(
    listing: FileAccess, output: StoredOutput, folder: Path, manifest: Manifest | None
) -> str | None:
    """Return why a version may have been written at another place and copied here, or None.

    For example, somebody copied it from the folder of another output.

    Args:
        listing: Access to the output root.
        output: The output in whose folder the version is.
        folder: Folder of the version.
        manifest: Its manifest, which says where it was written; None for an unfinished version.
    """
    if manifest is not None:
        path = f"{output.stage_folder}/{output.name}/{folder.name}"
        written_path = _place_of(manifest)  # such as datasets/web/3f9c…
        if path != written_path:
            return f"its manifest is that of {written_path}"
    if _is_linked(listing, folder):
        return "a symbolic link leads to it"
    return None


def _our_files(
    listing: FileAccess, output: StoredOutput, folder: Path, manifest: Manifest | None
) -> set[str] | None:
    """Return the files of a version that nanoset certainly wrote.

    Args:
        listing: Access to the output root.
        output: The output that the version belongs to.
        folder: Folder of the version.
        manifest: Its manifest, which lists the files; None for an unfinished version, whose files
            are recognised by its stage.

    Returns:
        Paths below the folder; None if nothing shows that nanoset wrote any.
    """
    if manifest is None:
        return _unfinished_files(listing, output, folder)
    return {*manifest.files, MANIFEST}


def _unfinished_files(listing: FileAccess, output: StoredOutput, folder: Path) -> set[str] | None:
    """Return the files of an unfinished version, if nanoset certainly wrote them.

    Its stage recognises them, by the names that it gives to its files.

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
    # Only two kinds of versions are ever unfinished under their final name: those that a build
    # writes file by file, such as tars, and those of which a build uploaded only some files.
    if isinstance(stage, Resumable):
        return stage.unfinished_files(listing, folder)
    return uploaded_files(stage.layout, listing, folder)


def _place_of(manifest: Manifest) -> str:
    """Return the path below the output root where a manifest belongs, without its own name."""
    return f"{manifest.stage}/{manifest.name}/{manifest.digest}"


def _reason_to_leave_alone(entries: Mapping[str, Entry], our_files: Collection[str]) -> str | None:
    """Return why a version stays as a whole if it has a file that nanoset did not write, or None.

    Such a file may be somebody's only copy.

    Args:
        entries: Path of each file in the folder of the version → its entry.
        our_files: Paths of the files that nanoset wrote.

    Returns:
        The reason, such as "it holds a symbolic link: notes.txt".
    """
    for file, entry in entries.items():
        if entry.is_link:
            return f"it holds a symbolic link: {file}"
        is_ours = file in our_files or Path(file).name.startswith(UNFINISHED)
        if not is_ours:
            return f"it holds a file that is not of nanoset: {file}"
    return None


def judge_all_shared_files(
    listing: FileAccess, outputs: Sequence[StoredOutput], needed: Needed, policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Yield the unneeded files in folders that the versions of an output share.

    For example, all versions of a nanoset's splits share the folder `cache` with index files.

    Args:
        listing: Access to the output root.
        outputs: All outputs below it.
        needed: The versions and files that have to stay.
        policy: Which files are kept because of their age.

    Yields:
        Each file as garbage; or as left alone, if nanoset may not have written it.
    """
    for stage_folder, shared_folder in shared_folders().items():  # "nanosets", "cache"
        for subject, outputs_of_subject in _by_subject(outputs, stage_folder).items():
            needed_names = needed.shared_files.get((stage_folder, subject), set())
            place = f"{stage_folder}/{subject}/{shared_folder}"  # nanosets/pretrain/cache
            files = _shared_files(listing, listing.folder / place)

            # The policy keeps young files. One that is newer than the current versions may belong
            # to a running build.
            current_since_ns = _last_change_ns(listing, outputs_of_subject)
            unneeded_names = [
                name
                for name, entry in files.items()
                if name not in needed_names and not policy.keeps(entry.written_ns, current_since_ns)
            ]
            yield from _judge_shared_files(listing, place, subject, files, unneeded_names)


def _by_subject(
    outputs: Iterable[StoredOutput], stage_folder: str
) -> dict[str, list[StoredOutput]]:
    """Group the outputs of a stage by the nanoset, corpus and so on that they belong to.

    Args:
        outputs: All outputs.
        stage_folder: Folder of the stage. Outputs of other stages are left out.
    """
    outputs_by_subject: dict[str, list[StoredOutput]] = {}
    for output in outputs:
        if output.stage_folder == stage_folder:
            outputs_by_subject.setdefault(output.subject, []).append(output)
    return outputs_by_subject


def _last_change_ns(listing: FileAccess, outputs: Iterable[StoredOutput]) -> int:
    """Return when the last of some outputs got its current version, in ns since 1970.

    A file that they share may belong to a running build if it is newer.

    Args:
        listing: Access to the output root.
        outputs: The outputs, at least one.
    """
    return max(listing.written_ns(output.folder / CURRENT) for output in outputs)


def _shared_files(listing: FileAccess, folder: Path) -> dict[str, Entry]:
    """Return the files of a shared folder by name, without unfinished ones.

    Args:
        listing: Access to the output root.
        folder: The folder, such as nanosets/pretrain/cache. It need not exist.
    """
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
    unneeded_names: Iterable[str],
) -> Iterator[Garbage | LeftAlone]:
    """Decide which unneeded files of a shared folder are garbage: those that nanoset wrote.

    Args:
        listing: Access to the output root.
        place: Path of the shared folder below the root, such as nanosets/pretrain/cache.
        subject: The nanoset that the folder belongs to.
        files: All files in it, by name.
        unneeded_names: Names of the files that nothing needs.

    Yields:
        First, in one report, the files that nanoset may not have written, as left alone; then each
        of its own as garbage.
    """
    # Next to its index files, nanoset writes notes, which list them. If the folder is a link, it
    # may be somebody else's: then no file counts as written by nanoset.
    folder = listing.folder / place
    our_files: set[str] = set()
    if not _is_linked(listing, folder):
        our_files = _files_in_notes(listing, folder, files)

    removable_names: list[str] = []
    foreign_files: dict[str, Entry] = {}
    for name in unneeded_names:
        if name in our_files and not files[name].is_link:
            removable_names.append(name)
        else:
            foreign_files[name] = files[name]

    if foreign_files:
        yield _foreign_files(folder, foreign_files)
    # Notes come last: if the removal is interrupted, the next one needs them to know our files.
    for name in _in_order_of_removal(removable_names):
        yield Garbage(folder / name, place, subject, "cache file", files[name].size)


def _foreign_files(folder: Path, files: Mapping[str, Entry]) -> LeftAlone:
    """Report files in a shared folder that nanoset may not have written, so that they stay.

    Args:
        folder: The folder.
        files: The files by name, at least one. The report names the first in the alphabet.
    """
    count = format_count(len(files), "file")
    size = sum(entry.size for entry in files.values())
    why = "that no note of ours lists, or that a symbolic link leads to"
    return LeftAlone(folder, f"{count} ({size:,} bytes) {why}, such as {min(files)}")


def _files_in_notes(listing: FileAccess, folder: Path, names: Iterable[str]) -> set[str]:
    """Return the files in a folder of index files that nanoset certainly wrote.

    Next to index files, nanoset writes notes, JSON files that list them. Their names end in
    `nanoset.json`.

    Args:
        listing: Access to the output root.
        folder: The folder.
        names: Names of all files in it.

    Returns:
        The files that notes list, and the notes.
    """
    our_files: set[str] = set()
    for name in names:
        if name.endswith(_NOTE):
            our_files |= _noted_files(listing, folder, name)
    return our_files


def _in_order_of_removal(names: Iterable[str]) -> list[str]:
    """Return the names of index files with descriptions first and notes last.

    If a collection is cut short, the next one needs the notes to recognise the remaining files.

    Args:
        names: The names, in any order.
    """
    return sorted(names, key=lambda name: (name.endswith(_NOTE), "description" not in name, name))


def _noted_files(listing: FileAccess, folder: Path, note: str) -> set[str]:
    """Return the index files that a note lists: a JSON file that nanoset writes next to them.

    Args:
        listing: Access to the output root.
        folder: The folder of the index files.
        note: Name of the note in this folder.

    Returns:
        Names of the files and of the note; empty if nanoset did not write the note.
    """
    try:
        parsed_note = parse_receipt(listing.read_current(folder / note))
    except OSError:
        return set()
    if parsed_note is None:
        return set()  # it is not JSON

    # Another program's file may have such a name. A note of nanoset maps the files to what they
    # are, and says what they were made from.
    files = parsed_note.content.get(FILES)
    made_from = parsed_note.content.get("made_from")
    if not isinstance(files, Mapping) or not isinstance(made_from, Mapping):
        return set()
    return {note, *files}


def _is_linked(listing: FileAccess, folder: Path) -> bool:
    """Return whether a folder, or one between it and the output root, is a symbolic link.

    Args:
        listing: Access to the output root.
        folder: A folder below the root.
    """
    folders = (folder, *folder.parents)
    folders_below_root = folders[: folders.index(listing.folder)]
    return any(listing.is_link(path) for path in folders_below_root)


def files_below(listing: FileAccess, folder: Path, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield every file and link below a folder; links are not followed.

    Args:
        listing: Access to the output root.
        folder: The folder.
        prefix: Path that precedes the names that are yielded, such as "tars/".

    Yields:
        Path relative to the folder, such as "tars/0001.tar", and the entry with its size and time.
    """
    for entry in listing.entries(folder):
        if entry.is_folder and not entry.is_link:
            yield from files_below(listing, folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry

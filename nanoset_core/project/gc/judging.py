"""Decide which of the versions and files that nothing needs may be removed.

Only what nanoset certainly wrote is garbage. A version with a file that its manifest does not list,
an index file that no receipt lists, and everything behind a symbolic link is left alone and
reported: it may be somebody's only copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, read_manifest
from nanoset_core.outputs.receipts import FILES, parse_receipt
from nanoset_core.outputs.root import CURRENT, CURRENT_LINK
from nanoset_core.project.gc.garbage import Garbage, GarbageKind, LeftAlone, Policy
from nanoset_core.project.gc.needed import Needed
from nanoset_core.project.stored_outputs import StoredOutput, shared_folders
from nanoset_core.sampling.descriptions import RECEIPT_ENDING, is_description
from nanoset_core.stages.registry import stage_of
from nanoset_core.stages.stage import Resumable, uploaded_files
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.listing import Entry
from nanoset_core.storage.removing.freed_space import FileSizes
from nanoset_core.wording import format_count


def judge_all(
    listing: FileAccess, outputs: Sequence[StoredOutput], needed: Needed, policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Decide of each old version and file that nothing needs whether to delete it.

    Every build of an output, such as a dataset, is kept as a version. `nanoset gc` deletes those
    that nothing needs, but only if nanoset certainly wrote all files in them. Anything else may be
    somebody's only copy.

    Args:
        listing: Access to the output folder.
        outputs: All outputs in it, with their versions.
        needed: The versions and files that have to stay.
        policy: Which files are kept because of their age.

    Yields:
        Each version or file: as garbage, or as left alone with the reason.
    """
    for output in outputs:
        for digest in output.versions:
            if digest not in needed.digests:
                yield judge_version(listing, output, digest)
        if output.has_copy:
            copy = output.folder / CURRENT_LINK
            yield LeftAlone(copy, "a folder, copied through the link `current`, that nothing needs")
    yield from judge_all_shared_files(listing, outputs, needed, policy)


def judge_version(listing: FileAccess, output: StoredOutput, digest: str) -> Garbage | LeftAlone:
    """Decide whether an old version of an output may be deleted: if this program wrote all of it.

    A version is one build of an output, in a folder such as datasets/web/3f9c…. `nanoset gc` calls
    this for versions that nothing needs. But somebody may have put other files there, of which
    there is no other copy:

        web.bin, manifest.json               garbage: the manifest lists web.bin
        web.bin, manifest.json, notes.txt    left alone: notes.txt is not of nanoset
        results.csv                          left alone: there is no manifest

    Args:
        listing: Access to the output folder.
        output: The output that the version belongs to.
        digest: Name of the version's folder, such as 3f9c….

    Returns:
        Garbage, or left alone with the reason.
    """
    folder = output.folder / digest
    try:
        manifest = read_manifest(folder, listing)  # None for an unfinished version
    except (FormatError, OSError) as error:
        return LeftAlone(folder, f"its manifest cannot be read: {getattr(error, 'what', error)}")

    # Did nanoset write it, and at this place?
    our_files = _our_files(listing, output, folder, manifest)
    if our_files is None:
        return LeftAlone(folder, "it has no manifest, and no markers of nanoset")
    reason = _reason_of_other_place(listing, output, folder, manifest)
    if reason is not None:
        return LeftAlone(folder, reason)

    # Is there any other file?
    entries = dict(files_below(listing, folder))  # path → size and so on
    reason = _reason_to_leave_alone(entries, our_files)
    if reason is not None:
        return LeftAlone(folder, reason)

    name = f"{output.stage_folder}/{output.name}"  # datasets/web
    kind: GarbageKind = "unfinished" if manifest is None else "version"
    sizes = FileSizes.of(entries.values())
    return Garbage(folder, name, output.leased_name, kind, sizes)


def _reason_of_other_place(
    listing: FileAccess, output: StoredOutput, folder: Path, manifest: Manifest | None
) -> str | None:
    """Return why a folder may be somebody's copy of an old build, which must not be deleted.

    Args:
        listing: Access to the output folder.
        output: The output in whose folder the build is.
        folder: Folder of the build, such as datasets/web-copy/3f9c….
        manifest: Describes the build; None if it was killed before it wrote one.

    Returns:
        A clause such as "its manifest is that of datasets/web/3f9c…"; None if nothing suggests
        that.
    """
    if manifest is not None:
        path = f"{output.stage_folder}/{output.name}/{folder.name}"
        written_path = manifest.location  # where the build wrote it
        if path != written_path:
            return f"its manifest is that of {written_path}"
    if _is_linked(listing, folder):
        return "a symbolic link leads to it"
    return None


def _our_files(
    listing: FileAccess, output: StoredOutput, folder: Path, manifest: Manifest | None
) -> set[str] | None:
    """Return which files in the folder of an old build certainly come from nanoset, not from users.

    `nanoset gc` deletes old builds, but no files of users. When a build is complete, it writes a
    manifest, a JSON file that lists its files. So there are two cases:

        there is a manifest    what it lists, such as web.bin and web.idx, and the manifest itself
        there is none          the build was killed: files that are named as nanoset names them

    Args:
        listing: Access to the output folder.
        output: The output that the build belongs to.
        folder: Folder of the build.
        manifest: The manifest, or None.

    Returns:
        Paths below the folder. None if there is no manifest, and no name shows that nanoset wrote
        the files.
    """
    if manifest is None:
        return _unfinished_files(listing, output, folder)
    return {*manifest.files, MANIFEST}


def _unfinished_files(listing: FileAccess, output: StoredOutput, folder: Path) -> set[str] | None:
    """Return the files of an incomplete version of an output, if nanoset certainly wrote them.

    How they are recognised depends on the stage, the code that makes outputs of their kind:

    - Several builds may write an output in turn, such as 1,000 tar files. Then the stage knows what
      they have written so far.
    - Other outputs get the name of the folder when they are complete. Only in a bucket, where no
      folder can be renamed, they are uploaded file by file. They are recognised by the names of
      these files.
    - This version of nanoset may not have the stage. Then nothing is recognised.

    Args:
        listing: Access to the output folder.
        output: The output that the version belongs to.
        folder: Folder of the version.

    Returns:
        Paths below the folder; None if the files may be somebody else's.
    """
    stage = stage_of(output.stage_folder, output.name)
    if stage is None:
        return None
    if isinstance(stage, Resumable):
        return stage.unfinished_files(listing, folder)
    return uploaded_files(stage.layout, listing, folder)


def _reason_to_leave_alone(entries: Mapping[str, Entry], our_files: Collection[str]) -> str | None:
    """Return why an old version of an output stays: nanoset did not write all files in it.

    Such a file may be somebody's only copy. For example:

        web.bin, manifest.json               no reason: nanoset wrote both
        web.bin, manifest.json, notes.txt    "it holds a file that is not of nanoset: notes.txt"
        web.bin, a link to /home/ann         "it holds a symbolic link: …"

    Args:
        entries: Path of each file in the folder of the version → its entry.
        our_files: Paths of the files that nanoset wrote.

    Returns:
        The reason, or None.
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
    """Find the index files that no training data needs any more, and decide which to delete.

    Trainers find their samples by index files. All versions (builds) of a training's data share a
    folder with such files. For example, in nanosets/pretrain/cache:

        a1b2-document_index.npy    the current version needs it     not in the result
        c3d4-document_index.npy    an old version needed it         Garbage: it may be deleted
        e5f6-document_index.npy    nanoset did not write it         LeftAlone: it stays

    Args:
        listing: Access to the output folder.
        outputs: All outputs in it.
        needed: What has to stay, with the names of the index files among it.
        policy: Which files are kept because of their age.

    Yields:
        What was decided about each unneeded file.
    """
    for stage_folder, shared_folder in shared_folders().items():  # such as "nanosets" and "cache"
        # Each training, such as "pretrain", has several outputs of this kind, such as for train.
        outputs_by_subject = _by_subject(outputs, stage_folder)
        for subject, outputs_of_subject in outputs_by_subject.items():
            place = f"{stage_folder}/{subject}/{shared_folder}"  # nanosets/pretrain/cache
            files = _shared_files(listing, listing.folder / place)
            needed_names = needed.shared_files.get((stage_folder, subject), set())
            current_since_ns = _last_change_ns(listing, outputs_of_subject)
            unneeded_names = _unneeded_files(files, needed_names, policy, current_since_ns)
            # Trainers write files of such names, too. This finds out which ones nanoset wrote.
            yield from _judge_shared_files(listing, place, subject, files, unneeded_names)


def _unneeded_files(
    files: Mapping[str, Entry], needed_names: Collection[str], policy: Policy, current_since_ns: int
) -> list[str]:
    """Return which index files are not needed, and old enough to be deleted.

    For example, if the current version has been in use since noon:

        a1b2-document_index.npy    needed                          stays
        c3d4-document_index.npy    not needed, written at 9:00     returned
        e5f6-document_index.npy    not needed, written at 13:00    stays: a build may have begun

    Args:
        files: The index files by name, with the times when they were written.
        needed_names: Names of those that are needed.
        policy: Which others are kept because of their age.
        current_since_ns: Since when the current version is in use, in ns since 1970.
    """
    unneeded_names = []
    for name, entry in files.items():
        is_kept = name in needed_names or policy.keeps(entry.written_ns, current_since_ns)
        if not is_kept:
            unneeded_names.append(name)
    return unneeded_names


def _by_subject(
    outputs: Iterable[StoredOutput], stage_folder: str
) -> dict[str, list[StoredOutput]]:
    """Group the outputs of one kind by what they belong to.

    For example, those of nanosets (mixtures of texts for training):

        pretrain    pretrain/train/index, pretrain/train/blend, pretrain/valid/index …
        finetune    finetune/train/index …

    Args:
        outputs: Outputs of all kinds.
        stage_folder: Folder of the outputs to group, such as nanosets. Others are left out.
    """
    outputs_by_subject: dict[str, list[StoredOutput]] = {}
    for output in outputs:
        if output.stage_folder == stage_folder:
            outputs_by_subject.setdefault(output.leased_name, []).append(output)
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
    """Return the index files in a folder, by name, without temporary ones that are being written.

    Trainers find their samples by index files, which all builds of a nanoset share.

    Args:
        listing: Access to the output folder.
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
    """Decide which unneeded index files for trainers to delete: those that nanoset wrote.

    Trainers write index files of the same names, and may have written some into this folder. What
    nanoset wrote is listed in receipts, small files next to the index files:

        a1b2-document_index.npy     listed in the receipt a1b2-nanoset.json: garbage
        a1b2-nanoset.json           the receipt: garbage
        c3d4-document_index.npy     listed nowhere: left alone

    Args:
        listing: Access to the output folder.
        place: The folder of the index files, such as nanosets/pretrain/cache.
        subject: The nanoset (mixture of texts) that they belong to, such as pretrain.
        files: All files in the folder, by name.
        unneeded_names: Names of the files that nothing needs.

    Yields:
        First, in one report, all files that are left alone; then each garbage file.
    """
    folder = listing.folder / place
    if _is_linked(listing, folder):
        our_files: set[str] = set()  # somebody else may use the folder that the link leads to
    else:
        our_files = _files_in_receipts(listing, folder, files)

    garbage_names: list[str] = []
    foreign_files: dict[str, Entry] = {}
    for name in unneeded_names:
        if name in our_files and not files[name].is_link:
            garbage_names.append(name)
        else:
            foreign_files[name] = files[name]

    if foreign_files:
        yield _foreign_files(folder, foreign_files)
    # The files are deleted in this order, receipts last. If that is interrupted, the next call
    # needs the receipts to know which of the remaining files nanoset wrote.
    for name in _in_order_of_removal(garbage_names):
        sizes = FileSizes.of([files[name]])
        yield Garbage(folder / name, place, subject, "cache file", sizes)


def _foreign_files(folder: Path, files: Mapping[str, Entry]) -> LeftAlone:
    """Report the index files in a folder that stay because nanoset may not have written them.

    For example: "2 files (4,096 bytes) that nanoset may not have written, such as
    c3d4-document_index.npy".

    Args:
        folder: The folder.
        files: The files by name, at least one. Nanoset keeps a list of the files that it has
            written, and these are not in it, or somebody has replaced them by links.
    """
    count = format_count(len(files), "file")
    size = sum(entry.size for entry in files.values())
    first_name = min(files)
    why = f"that nanoset may not have written, such as {first_name}"
    return LeftAlone(folder, f"{count} ({size:,} bytes) {why}")


def _files_in_receipts(listing: FileAccess, folder: Path, names: Iterable[str]) -> set[str]:
    """Return which files in a folder nanoset certainly wrote, so that it may delete them.

    Trainers read index files, and may write some themselves into the same folder. Whenever nanoset
    writes some, it adds a receipt, a JSON file whose name ends with `nanoset.json`, and which
    lists them:

        a1b2-nanoset.json     {"files": {"a1b2-document_index.npy": …}, "made_from": …}

    Args:
        listing: Access to the output folder.
        folder: The folder with the index files.
        names: Names of all files in it.

    Returns:
        The files that receipts list, and the receipts.
    """
    our_files: set[str] = set()
    for name in names:
        is_receipt = name.endswith(RECEIPT_ENDING)
        if is_receipt:
            our_files.update(_files_in_receipt(listing, folder, name))
    return our_files


def _in_order_of_removal(names: Iterable[str]) -> list[str]:
    """Sort the names of index files, as they are to be deleted: first descriptions, receipts last.

    Receipts list the files that nanoset wrote. If the removal is interrupted, the next one needs
    them to recognise the remaining files. For example:

        a1b2-description.txt, a1b2-document_index.npy, a1b2-nanoset.json

    Args:
        names: The names, in any order.
    """
    descriptions: list[str] = []
    receipts: list[str] = []
    other_names: list[str] = []
    for name in sorted(names):
        if name.endswith(RECEIPT_ENDING):
            receipts.append(name)
        elif is_description(name):
            descriptions.append(name)
        else:
            other_names.append(name)
    return [*descriptions, *other_names, *receipts]


def _files_in_receipt(listing: FileAccess, folder: Path, receipt_name: str) -> set[str]:
    """Return the files that nanoset wrote according to a receipt.

    When nanoset writes index files for a trainer, it adds a receipt, a JSON file that lists them:

        {"files": {"a1b2-document_index.npy": …}, "made_from": {"dataset": "3f9c…"}}

    Only these files, and the receipt, may be deleted. If the receipt cannot be read, or is a JSON
    file of another program, no file may.

    Args:
        listing: Access to the output folder.
        folder: The folder of the index files.
        receipt_name: Name of the receipt in this folder.

    Returns:
        Names of the files, and of the receipt; empty if nanoset did not write the receipt.
    """
    try:
        receipt = parse_receipt(listing.read_current(folder / receipt_name))
    except OSError:
        return set()  # it cannot be read
    if receipt is None:
        return set()  # it is not JSON

    files = receipt.content.get(FILES)
    made_from = receipt.content.get("made_from")
    if not isinstance(files, Mapping) or not isinstance(made_from, Mapping):
        return set()  # it is a file of another program
    return {receipt_name, *files}


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
    """Yield every file and every link below a folder, also in the folders within it.

    Links are not followed. For example, in the folder of a build:

        manifest.json      "manifest.json" and its size and time
        tars/0001.tar      "tars/0001.tar" and its size and time

    Args:
        listing: Access to the output folder of the project.
        folder: The folder.
        prefix: What to put in front of the names, such as "tars/" for the folder `tars`; at first
            empty.
    """
    for entry in listing.entries(folder):
        is_real_folder = entry.is_folder and not entry.is_link
        if is_real_folder:
            yield from files_below(listing, folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry

"""Find the outputs that exist below a root, by the names of folders alone.

`nanoset gc` and `nanoset purge` have to find every version, also of outputs that nanoset.yaml does
not request any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import FormatError, StorageError
from nanoset_core.outputs.root import CURRENT, CURRENT_LINK, read_current
from nanoset_core.records.digests import is_digest
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import SharesFiles, is_of_corpora
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.listing import Entry

_MAX_NAME_DEPTH = 4
"""How many levels of folders below that of a stage are searched for versions."""


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """All stored versions of one output."""

    stage_folder: str
    """Name of its stage's folder below the root."""
    name: str
    """Its name, which is the path of its folder below that of the stage."""
    folder: Path
    """Folder of its versions."""
    versions: frozenset[str]
    """Digests of its versions."""
    current: str | None
    """Digest of the current version, or None."""
    has_copy: bool = False
    """Whether there is a folder `current`: a program has copied a version through the link of this
    name, often into a bucket.
    """

    @property
    def leased_name(self) -> str:
        """First part of its name: the corpus, nanoset, webdataset or view that it belongs to.

        A build has a lease on this name, which says that its outputs are in use. It may differ from
        `Key.subject`, which is the corpus for a view.
        """
        return self.name.partition("/")[0]


def stage_folders() -> list[str]:
    """Return the folders of all stages below the root, those of corpora first."""
    corpora_first = sorted(stages(), key=lambda stage: not is_of_corpora(stage))
    return list(dict.fromkeys(stage.layout.folder for stage in corpora_first))


def shared_folders() -> dict[str, str]:
    """Return the folders that contain no outputs, but files which several builds of outputs share.

    For example, trainers read a nanoset (a mixture of texts) by index files. All builds of a
    nanoset share these, in the folder nanosets/pretrain/cache.

    Returns:
        Folder of a kind of output → name of the shared folder, such as {"nanosets": "cache"}.
    """
    folders: dict[str, str] = {}
    for stage in stages():
        if isinstance(stage, SharesFiles):
            folders[stage.layout.folder] = stage.shared_folder
    return folders


def all_outputs(listing: FileAccess) -> list[StoredOutput]:
    """Return every output that is stored, whether it is still requested or not.

    For example, datasets/web has two builds (versions), each in a folder named by its digest:

        StoredOutput("datasets", "web", versions {3f9c…, 81aa…}, current 3f9c…)

    Args:
        listing: Access to the output folder.

    Returns:
        The outputs, those of text collections first.

    Raises:
        StorageError: The current version of an output was deleted, or the file that names it cannot
            be read.
    """
    outputs: list[StoredOutput] = []
    for stage_folder in stage_folders():  # such as "nanosets"
        # A folder with files that versions share has no outputs, such as nanosets/pretrain/cache.
        shared_folder = shared_folders().get(stage_folder)
        for entry in listing.entries(listing.folder / stage_folder):
            if entry.is_folder and not entry.name.startswith("."):
                outputs += _outputs_below(listing, stage_folder, entry.name, shared_folder)
    return outputs


def _outputs_below(
    listing: FileAccess, stage_folder: str, name: str, excluded_folder: str | None = None
) -> Iterator[StoredOutput]:
    """Find the outputs that are stored in a folder, and in the folders below it.

    A folder is that of an output if it has versions (builds), which are folders named by digests:
    nanosets/pretrain/train/blend has 3f9c… and 81aa….

    Args:
        listing: Access to the output folder.
        stage_folder: First folder of the path, such as nanosets, which has outputs of one kind.
        name: The rest of the path, such as pretrain/train.
        excluded_folder: Name of a folder in it that has no outputs, if any.

    Raises:
        StorageError: The current version of an output was deleted, or it is not clear which one is
            current.
    """
    entries = listing.entries(listing.folder.joinpath(stage_folder, name))
    output = _output_in(listing, stage_folder, name, entries)
    if output is not None:
        yield output

    if name.count("/") >= _MAX_NAME_DEPTH:
        return  # no output has a longer name
    # Other outputs may be in its folders, but not in those of versions, and not behind the link.
    excluded_names = {CURRENT_LINK, excluded_folder}
    if output is not None:
        excluded_names |= output.versions
    for entry in entries:
        is_hidden = entry.name.startswith(".")
        if entry.is_folder and not is_hidden and entry.name not in excluded_names:
            yield from _outputs_below(listing, stage_folder, f"{name}/{entry.name}")


def _output_in(
    listing: FileAccess, stage_folder: str, name: str, entries: Iterable[Entry]
) -> StoredOutput | None:
    """Return the output whose versions (builds) are in a folder, if there are any.

    A version is a folder that is named by a digest, and a file says which one is current:

        datasets/web/3f9c…           a version
        datasets/web/81aa…           another version
        datasets/web/current.json    names 3f9c…

    So the result is StoredOutput("datasets", "web", versions {3f9c…, 81aa…}, current 3f9c…).

    Args:
        listing: Access to the output folder.
        stage_folder: First folder of the path, such as datasets.
        name: The rest of the path, such as web.
        entries: The files and folders in the folder.

    Raises:
        StorageError: The current version was deleted, or current.json cannot be read.
    """
    digests = {entry.name for entry in entries if entry.is_folder and is_digest(entry.name)}
    has_current_json = any(entry.name == CURRENT for entry in entries)
    if not digests and not has_current_json:
        return None

    folder = listing.folder.joinpath(stage_folder, name)
    current_digest: str | None = None
    if has_current_json:
        current_digest = _existing_current(listing, folder, digests)
    return StoredOutput(
        stage_folder=stage_folder,
        name=name,
        folder=folder,
        versions=frozenset(digests),
        current=current_digest,
        has_copy=_has_copy_of_current(entries),
    )


def _has_copy_of_current(entries: Iterable[Entry]) -> bool:
    """Return whether the folder of an output has a folder `current`, instead of a link.

    Nanoset sets a link of this name to the current version. A program that copies outputs, for
    example into a bucket, may follow it, and so store the files of the version twice.

    Args:
        entries: The files and folders in the folder of the output.
    """
    for entry in entries:
        if entry.name == CURRENT_LINK and entry.is_folder and not entry.is_link:
            return True
    return False


def _existing_current(listing: FileAccess, folder: Path, versions: Collection[str]) -> str | None:
    """Return the current version of an output, after a check that it exists.

    Every build of an output is a version, named by a digest. A small file, current.json, names the
    current one.

    Args:
        listing: Access to the output folder.
        folder: Folder of the output, such as datasets/web, with current.json.
        versions: Digests of the versions that exist.

    Returns:
        Its digest, such as 3f9c…; None if no version is current.

    Raises:
        StorageError: The current version was deleted, or current.json cannot be read. Then nobody
            knows what the output needs, so `nanoset gc` must not delete anything.
    """
    current = _pointed_version(listing, folder)
    if current is not None and current not in versions:
        raise unreadable(folder / current, "this is the current version, but it was deleted")
    return current


def _pointed_version(listing: FileAccess, folder: Path) -> str | None:
    """Return the digest in current.json, a small file that names an output's current build.

    Args:
        listing: Access to the output folder.
        folder: Folder of the output, such as datasets/web.

    Returns:
        The digest, such as 3f9c…; None if there is no such file.

    Raises:
        StorageError: The file cannot be read.
    """
    try:
        return read_current(folder, listing)
    except FormatError as error:
        raise unreadable(folder, f"{error.where}: {error.found}") from error


def unreadable(place: Path, why: str) -> StorageError:
    """Return the error with which `nanoset gc` stops if it cannot read what an output needs.

    `nanoset gc` deletes what no output needs. A damaged output may need anything.

    Args:
        place: The folder of the damaged output, or a file that names its current version.
        why: What is wrong, as a clause.
    """
    return StorageError(
        "an output that has to be kept cannot be read, so nothing is removed",
        where=place,
        found=why,
        remedy=f"run `nanoset build`, which rebuilds it, or delete {place} if you do not need it",
    )

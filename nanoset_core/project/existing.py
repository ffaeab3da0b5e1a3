"""Find the outputs that exist below a root, by the names of folders alone.

`nanoset gc` and `nanoset purge` have to find every version, also of outputs that nanoset.yaml does
not request any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import FormatError, StorageError
from nanoset_core.outputs.manifest import is_digest
from nanoset_core.outputs.root import CURRENT, read_current
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import SharesFiles, is_of_corpora
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.listing import Entry

_CURRENT_LINK = "current"
"""Name of the symbolic link to the current version, which is for users, next to the versions."""
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

    @property
    def subject(self) -> str:
        """The corpus, nanoset, webdataset or view that it belongs to."""
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
    for stage_folder in stage_folders():
        outputs += _outputs_below(
            listing, stage_folder, shared_folder=shared_folders().get(stage_folder)
        )
    return outputs


def _outputs_below(
    listing: FileAccess, stage_folder: str, name: str = "", *, shared_folder: str | None
) -> Iterator[StoredOutput]:
    """Find the outputs that are stored in a folder, and in the folders below it.

    Every build of an output is a version, in a folder that is named by a digest. The path to these
    folders is the name of the output:

        nanosets/pretrain/train/blend/3f9c…     the output pretrain/train/blend
        nanosets/pretrain/train/blend/81aa…     another version of it
        nanosets/pretrain/valid/blend/c04d…     the output pretrain/valid/blend

    The search starts in nanosets/. It calls itself for each folder in it (pretrain), then for each
    folder in that (train, valid), and so on.

    Args:
        listing: Access to the output folder.
        stage_folder: First folder of the path, such as nanosets, which has outputs of one kind.
        name: Path below it of the folder to search, such as pretrain/train; at first empty.
        shared_folder: Name of a folder that has no outputs, but files that versions share, such as
            the `cache` of a nanoset; None if there is none. It is not searched.

    Raises:
        StorageError: The current version of an output was deleted, or it is not clear which one is
            current.
    """
    folder = listing.folder.joinpath(stage_folder, name)
    entries = [entry for entry in listing.entries(folder) if not entry.name.startswith(".")]
    # If these entries are versions, such as 3f9c… and 81aa…, this is the folder of an output.
    output = _output_in(listing, stage_folder, name, entries)
    if output is not None:
        yield output

    if name.count("/") >= _MAX_NAME_DEPTH:
        return  # no output has a longer name
    for folder_name in _folders_to_search(name, entries, output, shared_folder):
        if name == "":
            name_below = folder_name
        else:
            name_below = f"{name}/{folder_name}"
        yield from _outputs_below(listing, stage_folder, name_below, shared_folder=shared_folder)


def _folders_to_search(
    name: str, entries: Iterable[Entry], output: StoredOutput | None, shared_folder: str | None
) -> list[str]:
    """Return which folders in a folder may contain outputs, or lead to some.

    Every build of an output has a folder that is named by a digest, such as
    nanosets/pretrain/train/blend/3f9c…. The search for all outputs goes down from nanosets:

        searched folder                   folders in it         result
        nanosets/                         pretrain, finetune    both
        nanosets/pretrain/                train, cache          train (cache has files that outputs
                                                                share, but no outputs)
        nanosets/pretrain/train/blend/    3f9c…, current        none (3f9c… is a build, and current
                                                                a link to it)

    Args:
        name: Path of the searched folder below nanosets/: "", "pretrain" and
            "pretrain/train/blend".
        entries: The files and folders in it.
        output: In the last case, the output pretrain/train/blend with its builds; otherwise None.
        shared_folder: Name of the folder with shared files: "cache"; None if there is none.
    """
    folders = [entry.name for entry in entries if entry.is_folder]
    if name == "":
        return folders  # these have names that users chose, so even one named `current` counts

    excluded_names = {_CURRENT_LINK}  # "current"
    if output is not None:
        excluded_names |= output.versions  # {"3f9c…"}
    # The folder with shared files is at the second level: pretrain/cache. Further down, a folder of
    # the same name is an ordinary one.
    is_first_name = "/" not in name  # pretrain, and not pretrain/train
    if is_first_name and shared_folder is not None:
        excluded_names.add(shared_folder)
    return [folder for folder in folders if folder not in excluded_names]


def _output_in(
    listing: FileAccess, stage_folder: str, name: str, entries: Iterable[Entry]
) -> StoredOutput | None:
    """Return the output whose builds are in a folder, if there are any.

    Every build of an output is a version, in a folder that is named by a digest. A file says which
    one is current:

        datasets/web/3f9c…           a version
        datasets/web/81aa…           another version
        datasets/web/current.json    names 3f9c…

    Args:
        listing: Access to the output folder.
        stage_folder: First folder of the path, such as datasets.
        name: The rest of the path, such as web. It is empty for the folder `datasets` itself, which
            has no versions.
        entries: The files and folders in the folder.

    Raises:
        StorageError: The current version was deleted, or current.json cannot be read.
    """
    digests = set()
    if name != "":  # users name the folders in `datasets`, and a name may look like a digest
        for entry in entries:
            if entry.is_folder and is_digest(entry.name):
                digests.add(entry.name)
    has_pointer = any(entry.name == CURRENT for entry in entries)
    if not digests and not has_pointer:
        return None

    folder = listing.folder.joinpath(stage_folder, name)
    current_digest: str | None = None
    if has_pointer:
        current_digest = _existing_current(listing, folder, digests)
    return StoredOutput(stage_folder, name, folder, frozenset(digests), current_digest)


def _existing_current(listing: FileAccess, folder: Path, versions: Collection[str]) -> str | None:
    """Return the current version of an output, after a check that it exists.

    Every build of an output is a version, in a folder that is named by its digest. A small file,
    current.json, names the current one. If that was deleted, nobody knows what it was made from, so
    `nanoset gc` must not delete anything.

    Args:
        listing: Access to the output folder.
        folder: Folder of the output, such as datasets/web, with current.json.
        versions: Digests of the versions that exist.

    Returns:
        Its digest, such as 3f9c….

    Raises:
        StorageError: The current version was deleted, or current.json cannot be read.
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
    """Return the error with which `nanoset gc` stops if it cannot read something that has to stay.

    `nanoset gc` deletes builds of outputs that nothing needs. To find out what a build needs, it
    reads the build's manifest. If that cannot be read, the build may need anything, so nothing is
    deleted:

        view c04d…       damaged: which dataset is it a selection of?
        dataset 3f9c…    may be needed by the view, so it must stay

    Args:
        place: The folder of the damaged build, or a file that names the current build of an output.
        why: What is wrong, as a clause.
    """
    return StorageError(
        "a version that is current, is kept, or that another one needs, cannot be read, "
        "so nothing is removed",
        where=place,
        found=why,
        remedy=f"run `nanoset build`, which rebuilds it, or delete {place} if you do not need it",
    )

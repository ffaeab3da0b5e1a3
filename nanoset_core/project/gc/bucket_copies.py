"""`nanoset gc --copies`: remove local copies of files of the outputs' bucket, also of deleted ones.

A copy may outlive its file: another machine has deleted the version from the bucket, for example
because `nanoset purge` erased documents. Such copies are removed, too. They differ from outputs
that are not uploaded yet: as long as a process of this machine makes an output, it has a lease.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import CURRENT
from nanoset_core.project.project import Project
from nanoset_core.project.stored_outputs import shared_folders, stage_folders
from nanoset_core.records.digests import is_digest
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use.leases import FOLDER as LEASE_FOLDER
from nanoset_core.storage.in_use.leases import collecting, leased_names
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.store import Stored

_ALWAYS_KEPT = (MANIFEST, CURRENT)
"""Files whose copies stay while the bucket has them: they are small, and every command needs them.
"""


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A file on this machine that is, or was, a copy of a file in the bucket."""

    path: Path
    size: int
    """Its size in bytes."""
    is_in_bucket: bool
    """Whether the bucket still has the file."""


def find_copies(project: Project, *, remove: bool = False) -> list[LocalCopy]:
    """Find the copies of files in a bucket that are on this machine, and delete them if asked.

    If the outputs of a project are in a bucket, files are downloaded when they are needed, and the
    copies stay, which may fill the disk. A deleted copy is downloaded again when it is needed.
    Copies of versions that the bucket no longer has are found, too. They may contain documents that
    `nanoset purge` has erased on another machine.

    Args:
        project: The project.
        remove: Whether to delete the copies.

    Returns:
        The copies, without those that a running build may be reading, and without outputs that it
        has not uploaded yet.

    Raises:
        ConfigError: The outputs are not in a bucket.
    """
    if project.config.root_place is None:
        raise _not_in_bucket_error(project)
    bucket = project.outputs.access
    if remove:
        return _remove_copies(bucket)
    busy_names = leased_names(_local_folder(bucket))
    return _removable_copies(bucket, busy_names)


def _local_folder(bucket: FileAccess) -> FileAccess:
    """Return access to the local folder in which copies of the files in a bucket are.

    Running builds on this machine write the names of the outputs that they use to this folder.
    (Builds on other machines have copies of their own.)

    Args:
        bucket: Access to the bucket.
    """
    return FileAccess(bucket.folder)


def _remove_copies(bucket: FileAccess) -> list[LocalCopy]:
    """Delete the local copies of files in a bucket that no build is reading, and return them.

    No new build can begin meanwhile, so none begins to read a copy that is being deleted, or to
    make an output that the bucket lacks.

    Args:
        bucket: Access to the bucket, and to the folder with local copies of its objects.
    """
    with collecting(_local_folder(bucket)) as busy_names:
        copies = _removable_copies(bucket, busy_names)
        for copy in copies:
            copy.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                copy.path.parent.rmdir()  # fails unless this was the last file in the folder
    return copies


def _not_in_bucket_error(project: Project) -> ConfigError:
    """Return the error for `nanoset gc --copies` if there can be no copies.

    Only of files in a bucket, such as s3://bucket/prefix, are copies kept on this machine. If
    `root`, the folder of outputs, is on a disk, there are none.

    Args:
        project: The project, whose setting `root` the error names.
    """
    return ConfigError(
        "these outputs are not in a bucket, so there are no copies",
        where=f"{project.config.file}: root",
        found=project.config.root,
        expected="an address such as s3://bucket/prefix, of which this machine keeps copies",
        remedy="leave out --copies",
    )


def _removable_copies(access: FileAccess, busy_names: Collection[str]) -> list[LocalCopy]:
    """Return the local copies of files in a bucket that nothing on this machine needs now.

    Args:
        access: Access to the bucket, and to the folder with local copies of its objects.
        busy_names: What running builds on this machine use, such as {"web"}.
    """
    if not access.folder.is_dir():
        return []

    stored_objects = list(access.store.list())
    return [
        *_copies_of_stored_objects(access, stored_objects, busy_names),
        *_copies_of_deleted_objects(access, stored_objects, busy_names),
    ]


def _copies_of_stored_objects(
    access: FileAccess, stored_objects: Iterable[Stored], busy_names: Collection[str]
) -> Iterator[LocalCopy]:
    """Yield the local copies of objects that a bucket has, so that they can be downloaded again.

    Args:
        access: Access to the bucket, and to the folder with local copies of its objects.
        stored_objects: All objects of the bucket.
        busy_names: What running builds on this machine use, such as {"web"}. It is left out.
    """
    for stored in stored_objects:
        # Another program may have stored an object with a name such as a/../../b. Its path would be
        # outside of the folder of copies, and must not be deleted.
        if not is_inside(stored.name) or not _may_be_removed(stored.name, busy_names):
            continue
        path = access.folder / stored.name
        if _size_of(path) == stored.size:
            yield LocalCopy(path, stored.size, is_in_bucket=True)


def _copies_of_deleted_objects(
    access: FileAccess, stored_objects: Iterable[Stored], busy_names: Collection[str]
) -> Iterator[LocalCopy]:
    """Yield the local copies of objects that were deleted from a bucket, such as by a purge.

    Args:
        access: Access to the bucket, and to the folder with local copies of its objects.
        stored_objects: All objects that the bucket still has.
        busy_names: What running builds on this machine make, such as {"web"}. It is left out, since
            they may not have uploaded it yet.
    """
    stored_names = {stored.name for stored in stored_objects}
    for path in _files_of_versions(access.folder):
        name = access.name(path)  # such as datasets/web/3f9c…/web.bin
        _stage_folder, output_name, *_ = name.split("/")
        if name in stored_names or output_name in busy_names:
            continue
        size = _size_of(path)
        if size is not None:
            yield LocalCopy(path, size, is_in_bucket=False)


def _size_of(path: Path) -> int | None:
    """Return the size of a file in bytes; None if there is none, perhaps since a moment ago.

    Two processes may remove copies at the same time.

    Args:
        path: Path of the file.
    """
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


def _files_of_versions(folder: Path) -> Iterator[Path]:
    """Yield the local files of all versions of outputs, and index files that versions share.

    For example:

        datasets/web/3f9c…/web.bin                         yes: 3f9c… is a version
        nanosets/pretrain/cache/77ab-document_index.npy    yes: `cache` is a shared folder
        datasets/web/.tmp-81aa…/web.bin                    no: a process is still writing it
        datasets/web/current.json                          no: it is not a file of a version

    Args:
        folder: Folder of the local copies.
    """
    for stage_folder in stage_folders():
        shared_folder = shared_folders().get(stage_folder)
        for parent, _, file_names in os.walk(folder / stage_folder):
            folders = Path(parent).relative_to(folder).parts  # ("datasets", "web", "3f9c…")
            if not _has_complete_files(folders, shared_folder):
                continue
            for file_name in file_names:
                path = Path(parent, file_name)
                is_hidden = file_name.startswith(".")
                if not is_hidden and path.is_file() and not path.is_symlink():
                    yield path


def _has_complete_files(folders: Sequence[str], shared_folder: str | None) -> bool:
    """Return whether a folder has files of a version of an output, or files that versions share.

        ("datasets", "web", "3f9c…")         True: it is a version
        ("nanosets", "pretrain", "cache")    True if the shared folder is `cache`
        ("datasets", "web", ".tmp-81aa…")    False: a process is still writing it
        ("datasets", "web")                  False

    Args:
        folders: The names in the path of the folder.
        shared_folder: Name of the folder with files that versions share; None if there is none.
    """
    is_in_version = any(is_digest(name) for name in folders[2:])
    is_shared = tuple(folders[2:]) == (shared_folder,)
    is_unfinished = any(name.startswith(".") for name in folders)
    return not is_unfinished and (is_in_version or is_shared)


def _may_be_removed(name: str, busy_names: Collection[str]) -> bool:
    """Return whether the local copy of an object in a bucket may be deleted.

    For example, while a build on this machine uses the text collection `web`:

        datasets/code/3f9c…/code.bin         yes
        datasets/web/81aa…/web.bin           no: the build may be reading it
        datasets/code/3f9c…/manifest.json    no: it is small, and every command needs it
        notes.txt                            no: it is no file of an output

    Args:
        name: Name of the object.
        busy_names: Names of the outputs that running builds on this machine use, such as {"web"}.
    """
    folder, *names = name.split("/")  # "datasets", ["code", "3f9c…", "code.bin"]
    # Builds write what they use to small files in LEASE_FOLDER, which are no outputs.
    is_in_output = len(names) > 0 and folder != LEASE_FOLDER
    if not is_in_output:
        return False
    output_name = names[0]
    file_name = names[-1]
    return output_name not in busy_names and file_name not in _ALWAYS_KEPT

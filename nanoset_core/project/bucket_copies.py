"""`nanoset gc --copies`: remove local copies of files that are in the bucket of the outputs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import CURRENT
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import FOLDER as LEASE_FOLDER
from nanoset_core.storage.leases import collecting, leased_names
from nanoset_core.storage.paths import is_inside

_ALWAYS_KEPT = (MANIFEST, CURRENT)
"""Files whose copies stay: they are small, and every command needs them."""


def find_copies(project: Project, *, remove: bool = False) -> dict[Path, int]:
    """Find the copies of files in a bucket that are on this machine, and delete them if asked.

    If the outputs of a project are in a bucket, files are downloaded when they are needed, and the
    copies stay, which may fill the disk. A deleted copy is downloaded again when it is needed.

    Args:
        project: The project.
        remove: Whether to delete the copies.

    Returns:
        Path of each copy → size in bytes, without those that a running build may be reading.

    Raises:
        ConfigError: The outputs are not in a bucket.
    """
    if project.config.root_place is None:
        raise _not_in_bucket_error(project)
    bucket = project.outputs.access

    # Running builds on this machine write the names of the outputs that they use to the local
    # folder. (Builds on other machines have copies of their own.)
    local_folder = FileAccess(bucket.folder)
    if not remove:
        return _removable_copies(bucket, busy_names=leased_names(local_folder))

    # No new build begins during this block, so none begins to read a copy that is being deleted.
    with collecting(local_folder) as busy_names:
        copies = _removable_copies(bucket, busy_names)
        for path in copies:
            path.unlink(missing_ok=True)
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


def _removable_copies(access: FileAccess, busy_names: Collection[str]) -> dict[Path, int]:
    """Return the local copies of files in a bucket that nothing on this machine needs now.

    Args:
        access: Access to the bucket, and to the folder with local copies of its objects.
        busy_names: What running builds on this machine use, such as {"web"}.

    Returns:
        Path of each copy → size in bytes.
    """
    copies: dict[Path, int] = {}
    if not access.folder.is_dir():
        return copies
    for stored in access.store.list():
        # Another program may have stored an object with a name such as a/../../b. Its path would be
        # outside of the folder of copies, and must not be deleted.
        if not is_inside(stored.name) or not _may_be_removed(stored.name, busy_names):
            continue
        path = access.folder / stored.name
        is_copy = path.is_file() and path.stat().st_size == stored.size
        if is_copy:
            copies[path] = stored.size
    return copies


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

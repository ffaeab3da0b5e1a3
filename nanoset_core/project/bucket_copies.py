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
    """Find local copies of files that are in the bucket of the outputs, and remove them if asked.

    The next command that needs such a file downloads it again.

    Args:
        project: Its root is in a bucket, and it has a folder for copies on this machine.
        remove: Whether to remove the copies, too.

    Returns:
        Path of each copy → size in bytes, without copies that a running build may need.

    Raises:
        ConfigError: The outputs are not in a bucket.
    """
    bucket = project.outputs.access
    if project.config.root_place is None:
        raise _not_in_bucket_error(project)

    # A build holds leases: small files that name what it works on. Those of builds on this machine
    # are in the folder of copies; only these builds read the copies.
    local_folder = FileAccess(bucket.folder)
    if not remove:
        return _removable_copies(bucket, busy_names=leased_names(local_folder))

    # New builds wait during this block, so that none begins to read a copy that is being removed.
    with collecting(local_folder) as busy_names:
        copies = _removable_copies(bucket, busy_names)
        for path in copies:
            path.unlink(missing_ok=True)
    return copies


def _not_in_bucket_error(project: Project) -> ConfigError:
    """Return the error that there are no copies, since the outputs are not in a bucket.

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
    """Return the local copies of objects in the bucket that may be removed.

    Args:
        access: Access to the bucket, and to the folder with local copies of its objects.
        busy_names: Corpora, nanosets and so on that builds on this machine work on.

    Returns:
        Path → size in bytes.
    """
    copies: dict[Path, int] = {}
    if not access.folder.is_dir():
        return copies
    for stored in access.store.list():
        # Another program may have stored an object with a name such as a/../../b, whose path would
        # be outside the folder of copies.
        if not is_inside(stored.name) or not _may_be_removed(stored.name, busy_names):
            continue
        # A file of another size is no copy of the object as it is now.
        path = access.folder / stored.name
        if path.is_file() and path.stat().st_size == stored.size:
            copies[path] = stored.size
    return copies


def _may_be_removed(name: str, busy_names: Collection[str]) -> bool:
    """Return whether an object is a file of an output whose local copy nothing needs now.

    Args:
        name: Name of the object, such as datasets/web/<digest>/web.bin: the folder of a stage, the
            name of a corpus, nanoset or webdataset, and so on.
        busy_names: Corpora, nanosets and so on that builds on this machine work on.
    """
    # Objects without a folder are no files of outputs, nor are the leases of builds.
    stage_folder, *names = name.split("/")
    if not names or stage_folder == LEASE_FOLDER:
        return False
    subject = names[0]
    file_name = names[-1]
    return subject not in busy_names and file_name not in _ALWAYS_KEPT

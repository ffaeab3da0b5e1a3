"""`nanoset gc --copies`: remove local copies of files that are in the bucket of the outputs."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import CURRENT
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import FOLDER, collecting, leased_names
from nanoset_core.storage.paths import is_inside

_ALWAYS_KEPT = (MANIFEST, CURRENT)
"""Files whose copies stay: they are small, and every command needs them."""


def find_copies(project: Project, *, remove: bool = False) -> dict[Path, int]:
    """Return the local copies of files in the bucket, and remove them if requested.

    Copies of outputs that a build is working on are left out.

    Args:
        project: The project.
        remove: Whether to remove them.

    Returns:
        Path of each copy → size in bytes.

    Raises:
        ConfigError: The outputs are not in a bucket.
    """
    access = project.outputs.access
    if not access.has_copies:
        raise ConfigError(
            "these outputs are no copies",
            where=f"{project.config.file}: root",
            found=project.config.root,
            expected="s3://bucket/prefix, of which this machine keeps copies",
            remedy="leave out --copies",
        )

    # While copies are removed, no build on this machine may begin to read one. To list them, it is
    # enough to know which outputs builds work on.
    local = FileAccess(access.folder)
    with collecting(local) if remove else nullcontext(leased_names(local)) as leases:
        copies = _copies(access, leases)
        if remove:
            for path in copies:
                path.unlink(missing_ok=True)
    return copies


def _copies(access: FileAccess, leases: Collection[str]) -> dict[Path, int]:
    """Return the local files that have the name and size of an object in the bucket.

    Args:
        access: Access to the bucket, and to the folder with local copies of its objects.
        leases: Names of corpora, nanosets and so on that builds on this machine work on. Copies of
            their files are left out.

    Returns:
        Path → size in bytes.
    """
    copies: dict[Path, int] = {}
    if not access.folder.is_dir():
        return copies
    for stored in access.store.list():
        # The name of an object is such as datasets/web/<digest>/web.bin: a folder of a stage, the
        # corpus, nanoset or webdataset, and so on.
        folder, *names = stored.name.split("/")
        if not names or folder == FOLDER:
            continue
        subject = names[0]
        file_name = names[-1]
        if subject in leases or file_name in _ALWAYS_KEPT:
            continue
        path = access.folder / stored.name
        if is_inside(stored.name) and path.is_file() and path.stat().st_size == stored.size:
            copies[path] = stored.size
    return copies

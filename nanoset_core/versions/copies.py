"""Working copies of outputs in a bucket: what can go from this disk, since it can be downloaded again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import CURRENT
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import FOLDER, collecting, leased_names
from nanoset_core.storage.paths import is_inside


@dataclass(frozen=True, slots=True)
class Copy:
    """A file that the bucket holds, too."""

    path: Path
    size: int
    """Bytes."""


def find_copies(project: Project) -> list[Copy]:
    """Return what `remove_copies` would remove.

    Raises:
        ConfigError: the outputs do not live in a bucket.
    """
    return list(_copies(_copied(project), leased_names(FileAccess(project.outputs.folder))))


def remove_copies(project: Project) -> list[Copy]:
    """Remove copies of what the bucket holds with the same size, except of outputs in work; return what is gone.

    Raises:
        ConfigError: the outputs do not live in a bucket.
        StorageError: the bucket cannot be asked.
    """
    access = _copied(project)
    with collecting(FileAccess(access.folder)) as busy:
        found = list(_copies(access, busy))
        for copy in found:
            copy.path.unlink(missing_ok=True)
    return found


def _copied(project: Project) -> FileAccess:
    access = project.outputs.access
    if not access.has_copies:
        where, expected = f"{project.config.file}: root", "s3://bucket/prefix, of which this machine keeps copies"
        what, found = "these outputs are no copies", project.config.root
        raise ConfigError(what, where=where, found=found, expected=expected, remedy="leave out --copies")
    return access


def _copies(access: FileAccess, busy: Collection[str]) -> Iterator[Copy]:
    """Yield the copies, except of manifests and pointers, which are small and needed by every command."""
    for found in access.store.list() if access.folder.is_dir() else ():
        top, *rest = found.name.split("/")
        if not rest or top == FOLDER or rest[0] in busy or rest[-1] in (MANIFEST, CURRENT):
            continue
        path = access.folder / found.name
        if is_inside(found.name) and path.is_file() and path.stat().st_size == found.size:
            yield Copy(path, found.size)

"""Working copies of outputs in a bucket: what can go from this disk, since it can be downloaded again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import CURRENT
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import FOLDER, collecting, leased_names
from nanoset_core.storage.paths import is_inside


class Copy(NamedTuple):
    """A file that the bucket holds, too."""

    path: Path
    size: int
    """Bytes."""


def find_copies(project: Project, *, remove: bool = False) -> list[Copy]:
    """Return copies of what the bucket holds with the same size, except of outputs in work; perhaps remove them.

    Manifests and pointers stay: they are small, and needed by every command.

    Raises:
        ConfigError: the outputs do not live in a bucket.
        StorageError: the bucket cannot be asked.
    """
    access = project.outputs.access
    if not access.has_copies:
        where, expected = f"{project.config.file}: root", "s3://bucket/prefix, of which this machine keeps copies"
        what, found = "these outputs are no copies", project.config.root
        raise ConfigError(what, where=where, found=found, expected=expected, remedy="leave out --copies")
    here, copies = FileAccess(access.folder), []
    with collecting(here) if remove else nullcontext(leased_names(here)) as busy:
        for stored in access.store.list() if access.folder.is_dir() else ():
            top, *rest = stored.name.split("/")
            if not rest or top == FOLDER or rest[0] in busy or rest[-1] in (MANIFEST, CURRENT):
                continue
            path = access.folder / stored.name
            if is_inside(stored.name) and path.is_file() and path.stat().st_size == stored.size:
                copies.append(Copy(path, stored.size))
        for copy in copies if remove else ():
            copy.path.unlink(missing_ok=True)
    return copies

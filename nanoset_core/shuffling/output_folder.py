"""Look into the folder that the tars of one call go to, on this machine or in a bucket, and publish to it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nanoset_core.outputs.manifest import MANIFEST, Manifest, read_manifest
from nanoset_core.outputs.places import OutputPlace, place_of
from nanoset_core.shuffling.webdataset import LISTS
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import fsync_folder, sweep_abandoned
from nanoset_core.storage.location import Location
from nanoset_core.storage.scratch import unfinished_name
from nanoset_core.storage.working_copies import copies_beside, temporary_folder

_PUBLISHING = ".begun"
"""Object that marks a folder of a bucket to which a call publishes, or was publishing when it was killed."""


@dataclass(frozen=True, slots=True)
class TarsFolder:
    """Where the tars of one call go, with their lists and manifest."""

    output: Location
    """The folder."""
    draft: Path
    """Where they are written first; in a bucket a folder of the output's name."""
    folder: Path
    """The folder as `access` names it."""
    access: FileAccess

    @property
    def place(self) -> OutputPlace:
        """The folder, for single files."""
        return place_of(self.output)

    def names(self) -> frozenset[str] | None:
        """Return the names of what is in it; None where it is no folder."""
        if isinstance(self.output, Path) and self.output.exists() and not self.output.is_dir():
            return None
        return self.access.names(self.folder) - {_PUBLISHING}

    def manifest(self) -> Manifest | None:
        """Return the manifest of the result that it holds; raise FormatError where it is none of ours."""
        return read_manifest(self.folder, self.access)

    def interrupted(self) -> str | None:
        """Return the digest of the result that a call was publishing to a bucket when it was killed."""
        data = None if isinstance(self.output, Path) else self.place.read(_PUBLISHING)
        return None if data is None else data.decode(errors="replace")

    def clear_mark(self) -> None:
        """Remove the mark of a call that was killed just after it had published everything."""
        if self.interrupted() is not None:
            self.place.remove(_PUBLISHING)

    def publish(self, manifest: Manifest) -> Manifest:
        """Put the draft in place of an earlier result, and return its manifest there.

        A local folder is replaced by a rename. To a bucket tars are sent, then the lists that name them, and the
        manifest last.
        """
        if isinstance(self.output, Path):
            _replace(self.output, self.draft)
            return replace(manifest, folder=self.output)
        earlier = None
        with contextlib.suppress(ValueError):
            earlier = self.manifest()
        place, access = self.place, self.access.with_copies_in(self.draft.parent)
        place.write(_PUBLISHING, manifest.digest.encode())
        for name in (MANIFEST, *LISTS):
            place.remove(name)
        sums = {name: fact.sha256 for name, fact in manifest.files.items()}
        tars = {self.draft / name: sha256 for name, sha256 in sums.items() if name not in LISTS and sha256 is not None}
        access.send(tars, tars)
        access.publish(self.draft, sums, MANIFEST)
        for name in (earlier.files if earlier is not None else {}).keys() - sums.keys():
            place.remove(name)
        place.remove(_PUBLISHING)
        return replace(manifest, access=access)


def _replace(output: Path, draft: Path) -> None:
    fsync_folder(draft)
    sweep_abandoned(output.parent, output.name)  # such as an earlier result that a killed call had moved away
    earlier = unfinished_name(output)
    if output.exists() and any(output.iterdir()):
        output.rename(earlier)
    os.replace(draft, output)
    fsync_folder(output.parent)
    shutil.rmtree(earlier, ignore_errors=True)


@contextlib.contextmanager
def tars_folder(output: Location, work: Path) -> Iterator[TarsFolder]:
    """Give an output folder, of which a draft is made in `work`."""
    if isinstance(output, Path):
        yield TarsFolder(output, work / "tars", output, FileAccess(output))
        return
    with temporary_folder(output.name) as room:
        yield TarsFolder(output, work / "tars" / output.name, room / output.name, copies_beside(output, room))

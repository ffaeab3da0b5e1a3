"""The folder that a call's tars go to, on this machine or in a bucket: what it holds, and putting them there."""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nanoset_core.outputs.manifest import MANIFEST, Manifest, read_manifest
from nanoset_core.outputs.places import place_of
from nanoset_core.shuffling.webdataset import LISTS
from nanoset_core.storage.access import CopyAccess, copies_of
from nanoset_core.storage.atomic import fsync_folder, sha256_file, sweep_abandoned
from nanoset_core.storage.remote_folder import Location, RemoteFolder
from nanoset_core.storage.scratch import unfinished_name
from nanoset_core.storage.working_copies import claimed_room

_BEGUN = ".begun"


class TarsFolder(ABC):
    """Where the tars of one call go, with their lists and manifest."""

    output: Location
    draft: Path
    """Where they are written first."""

    @abstractmethod
    def names(self) -> frozenset[str] | None:
        """Of what lies right in it; None where it is no folder."""

    @abstractmethod
    def manifest(self) -> Manifest | None:
        """Of the result that it holds; FormatError where it is none of ours."""

    @abstractmethod
    def is_whole(self, found: Manifest) -> bool:
        """Whether all files of its result are there as they were written."""

    @abstractmethod
    def begun(self) -> str | None:
        """Digest of the result that a call was putting there when it was killed."""

    @abstractmethod
    def forget_begun(self) -> None:
        """Remove the mark of a call that was killed just after it had put everything there."""

    @abstractmethod
    def writing(self, *, expected: str | None = None) -> contextlib.AbstractContextManager[None]:
        """As `OutputPlace.writing`."""

    @abstractmethod
    def publish(self, manifest: Manifest) -> Manifest:
        """Let the draft be there in place of an earlier result; → its manifest, there."""


@dataclass(frozen=True, slots=True)
class LocalTars(TarsFolder):
    """A folder of this machine: the draft is renamed to it."""

    output: Path
    draft: Path

    def names(self) -> frozenset[str] | None:
        if not self.output.exists():
            return frozenset()
        return frozenset(path.name for path in self.output.iterdir()) if self.output.is_dir() else None

    def manifest(self) -> Manifest | None:
        return read_manifest(self.output)

    def is_whole(self, found: Manifest) -> bool:
        noted = ((found.folder / name, fact.sha256) for name, fact in found.files.items())
        return found.damage() is None and all(sha256 in (None, sha256_file(path)) for path, sha256 in noted)

    def begun(self) -> str | None:
        return None  # it is there whole or not at all

    def forget_begun(self) -> None:
        pass

    def writing(self, *, expected: str | None = None) -> contextlib.AbstractContextManager[None]:
        return place_of(self.output.parent).writing(expected=expected)

    def publish(self, manifest: Manifest) -> Manifest:
        output = self.output
        fsync_folder(self.draft)
        sweep_abandoned(output.parent, output.name)  # such as an earlier result that a killed call had moved away
        earlier = unfinished_name(output)
        if output.exists() and any(output.iterdir()):
            output.rename(earlier)
        os.replace(self.draft, output)
        fsync_folder(output.parent)
        shutil.rmtree(earlier, ignore_errors=True)
        return replace(manifest, folder=output)


@dataclass(frozen=True, slots=True)
class BucketTars(TarsFolder):
    """A folder in a bucket: tars are sent, then the lists that name them, and the manifest last."""

    output: RemoteFolder
    draft: Path
    """Of the output's name."""
    copies: Path
    """Takes copies of the small files of an earlier result."""

    def names(self) -> frozenset[str] | None:
        return self._access(self.draft).names(self.draft) - {_BEGUN}

    def manifest(self) -> Manifest | None:
        folder = self.copies / self.output.name
        return read_manifest(folder, self._access(folder))

    def is_whole(self, found: Manifest) -> bool:
        return found.damage() is None

    def begun(self) -> str | None:
        data = place_of(self.output).read(_BEGUN)
        return None if data is None else data.decode(errors="replace")

    def forget_begun(self) -> None:
        if self.begun() is not None:
            place_of(self.output).remove(_BEGUN)

    def writing(self, *, expected: str | None = None) -> contextlib.AbstractContextManager[None]:
        return place_of(self.output).writing(expected=expected)

    def publish(self, manifest: Manifest) -> Manifest:
        earlier = None
        with contextlib.suppress(ValueError):
            earlier = self.manifest()
        place, access = place_of(self.output), self._access(self.draft)
        place.write(_BEGUN, manifest.digest.encode())
        for name in (MANIFEST, *LISTS):
            place.remove(name)
        sums = {name: fact.sha256 for name, fact in manifest.files.items()}
        tars = [name for name in sums if name not in LISTS]
        known = {self.draft / name: sha256 for name in tars if (sha256 := sums[name]) is not None}
        access.send([self.draft / name for name in tars], known)
        access.publish(self.draft, sums, MANIFEST)
        for name in (earlier.files if earlier is not None else {}).keys() - sums.keys():
            place.remove(name)
        self.forget_begun()
        return replace(manifest, access=access)

    def _access(self, folder: Path) -> CopyAccess:
        """The output with copies in a folder of its name."""
        above = self.output.parent
        return copies_of(folder.parent, above.place.below(above.path) if above.path else above.place)


@contextlib.contextmanager
def tars_folder(output: Location, work: Path) -> Iterator[TarsFolder]:
    """What stands for an output folder; `work` is where its draft lies."""
    if isinstance(output, Path):
        yield LocalTars(output, work / "tars")
    else:
        with claimed_room(output.name) as room:
            yield BucketTars(output, work / "tars" / output.name, room)

"""A local folder of working copies of an output root that lives in a bucket, in the very same layout.

The bucket is the truth: an output is there when its manifest is, and the manifest goes up last. Work is done in the
mirror; what a process that was killed had finished there is sent by the next one. Copies may be removed at any time
while nothing is built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.errors import MissingError
from nanoset_core.storage.atomic import sha256_file, write_atomic
from nanoset_core.storage.location import S3Place
from nanoset_core.storage.paths import is_inside

if TYPE_CHECKING:
    from nanoset_core.storage.s3 import Bucket

_mirrors: dict[Path, Mirror] = {}


@dataclass(frozen=True, slots=True)
class Mirror:
    """One output root: where it lives, and where its working copies are."""

    folder: Path
    """absolute; of the working copies"""
    place: S3Place
    """in the bucket"""

    def __post_init__(self) -> None:
        self.register()

    def __reduce__(self) -> tuple[object, ...]:
        return Mirror, (self.folder, self.place)  # by way of __init__, which registers it

    def register(self) -> None:
        """Let this process know that files below the folder may have to be brought."""
        _mirrors[self.folder] = self

    @property
    def bucket(self) -> Bucket:
        from nanoset_core.storage.s3 import Bucket

        return Bucket(self.place)

    def name(self, path: Path) -> str:
        """A file's name below the root."""
        return path.relative_to(self.folder).as_posix()

    def url(self, path: Path) -> str:
        """Where the bucket keeps what lies at a local path."""
        return self.bucket.url(self.name(path))

    def refresh(self, path: Path) -> bool:
        """Make a small file what the bucket has now; → False, leaving the copy, where the bucket has none."""
        found = self.bucket.read_dated(self.name(path))
        if found is None:
            return False
        data, written_ns = found
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)
        if path.stat().st_mtime_ns != written_ns:
            os.utime(path, ns=(written_ns, written_ns))
        return True

    def refresh_beside(self, path: Path) -> dict[str, int]:
        """As refresh, of a file that is sent once; → relative name → bytes of every object below its folder.

        One request, where the copy is the object by its ETag. FileNotFoundError where the bucket has none.
        """
        listed = {found.name: found for found in self.bucket.list(self.name(path.parent))}
        stands = listed.get(self.name(path))
        if stands is None or not (self._is_copy(path, stands.etag, stands.mtime_ns) or self.refresh(path)):
            raise FileNotFoundError(self.url(path))
        cut = len(self.name(path.parent)) + 1
        return {name[cut:]: found.size for name, found in listed.items()}

    def _is_copy(self, path: Path, etag: str, written_ns: int) -> bool:
        from nanoset_core.storage.s3_digests import etag_of_bytes

        if not path.is_file() or etag_of_bytes(path.read_bytes()) != etag:
            return False
        if path.stat().st_mtime_ns != written_ns:
            os.utime(path, ns=(written_ns, written_ns))
        return True

    def refresh_all(self, folder: Path, name: str) -> None:
        """As refresh, of every file of this name below a folder.

        Those that the bucket lacks stay: a build may have made them a moment ago, and be about to send them.
        """
        from nanoset_core.storage.s3 import in_parallel

        keys = (found.name for found in self.bucket.list(self.name(folder)))
        there = (self.folder / key for key in keys if is_inside(key))  # others would lie elsewhere
        in_parallel(self.refresh, [path for path in there if path.name == name])

    def sizes(self, folder: Path) -> dict[str, int]:
        """Relative name → bytes of every object below a folder, as the bucket has them now."""
        cut = len(self.name(folder)) + 1
        return {found.name[cut:]: found.size for found in self.bucket.list(self.name(folder))}

    def bring(self, path: Path, *, size: int | None = None, sha256: str | None = None) -> bool:
        """Bring a file unless it is here, of this size where that is known; → whether it is here."""
        if path.is_file() and (size is None or path.stat().st_size == size):
            return True
        return self.bucket.download(self.name(path), path, sha256=sha256)

    def renew(self, path: Path) -> None:
        """Bring a file unless the copy has the size and the time of the object as it is now; remove that of none.

        For objects that are not ours, which may be replaced by others of the same name.
        """
        found = self.bucket.head(self.name(path))
        if found is None:
            path.unlink(missing_ok=True)
            return
        status = path.stat() if path.is_file() else None
        if status is not None and (status.st_size, status.st_mtime_ns) == (found.size, found.mtime_ns):
            return
        if self.bucket.download(found.name, path):
            os.utime(path, ns=(found.mtime_ns, found.mtime_ns))

    def send(self, paths: Iterable[Path], sha256: Mapping[Path, str] | None = None) -> None:
        """Bring files to the bucket, several at once; each is there whole or not at all.

        sha256: hex, of what files must hold, where it is known; StorageError for one that holds something else.
        """
        from nanoset_core.storage.s3 import in_parallel

        listed = list(paths)
        folders = {path.parent for path in listed}
        there = {found.name for folder in folders for found in self.bucket.list(self.name(folder))}

        def send(path: Path) -> None:
            known = None if sha256 is None else sha256.get(path)
            self.bucket.upload(path, self.name(path), replaces=self.name(path) in there, sha256=known)

        in_parallel(send, listed)

    def send_small(self, path: Path) -> None:
        """Bring a small file to the bucket, in the place of an older one."""
        data = path.read_bytes()
        if self.bucket.read(self.name(path)) != data:
            self.bucket.put(data, self.name(path))

    def publish(self, folder: Path, files: Mapping[str, str | None], manifest: str) -> None:
        """Bring an output to the bucket: every file, checked, and then the manifest that completes it.

        Files that the mirror does not have must be there already. A manifest of other bytes is withdrawn first.

        Args:
            folder: of the output.
            files: relative name → sha256, where it is known.
            manifest: name of the file that goes last.
        """
        from nanoset_core.storage.s3 import in_parallel

        bucket, place = self.bucket, self.name(folder)
        there = {found.name: found for found in bucket.list(place)}
        stands = there.get(f"{place}/{manifest}")
        data = (folder / manifest).read_bytes()
        if stands is not None and bucket.read(stands.name) != data:
            bucket.remove(stands.name)
            stands = None

        def send(name: str) -> None:
            path = folder / name
            if path.is_file():
                bucket.upload(path, self.name(path), replaces=self.name(path) in there, sha256=files[name])
            elif self.name(path) not in there:
                raise MissingError(
                    "a file of an output is neither here nor in the bucket",
                    where=self.url(path),
                    remedy="run it again: it is made anew",
                )

        in_parallel(send, files)
        if stands is None:
            bucket.put(data, f"{place}/{manifest}")

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove objects."""
        for path in paths:
            self.bucket.remove(self.name(path))


def mirror_of(path: Path) -> Mirror | None:
    """The mirror that a path lies in; None for a path that is only local."""
    if not _mirrors:
        return None
    for folder, mirror in _mirrors.items():
        if path.is_relative_to(folder):
            return mirror
    return None


def opened_again(path: Path, make: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `__reduce__` gives for what is opened from files below a path: the process that opens it knows the mirror.

    Processes that were not forked, such as a DataLoader's that are spawned, know of none by themselves.
    """
    mirror = mirror_of(path)
    return (make, arguments) if mirror is None else (_make_in, (mirror, make, arguments))


def _make_in(mirror: Mirror, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    mirror.register()
    return make(*arguments)


def current_bytes(path: Path) -> bytes:
    """A small file's bytes; those that the bucket has now, where it lives in one. FileNotFoundError where it is not."""
    mirror = mirror_of(path)
    if mirror is not None and not mirror.refresh(path):
        raise FileNotFoundError(mirror.url(path))
    return path.read_bytes()


def bring(path: Path) -> None:
    """Bring a file that is about to be read, where it lies in a mirror and is not here yet."""
    mirror = mirror_of(path)
    if mirror is not None and not path.is_file():
        mirror.bring(path)


def bring_manifests(folder: Path, name: str) -> None:
    """Bring the files of this name below a folder as its bucket has them now; a local folder stays as it is.

    Beside them may lie others, of outputs that are not in the bucket: `is_stored` tells.
    """
    mirror = mirror_of(folder)
    if mirror is not None:
        mirror.refresh_all(folder, name)


def is_stored(path: Path) -> bool:
    """Whether a file is there, in its bucket where it lives in one."""
    return stored_size(path) is not None


def stored_size(path: Path) -> int | None:
    """Bytes of a file as it is stored, in its bucket where it lives in one; None where it is not there."""
    mirror = mirror_of(path)
    if mirror is None:
        return path.stat().st_size if path.is_file() else None
    found = mirror.bucket.head(mirror.name(path))
    return None if found is None else found.size


def stored_sha256(path: Path) -> str:
    """Hex sha256 of a file that is there, as it is stored, in its bucket where it lives in one."""
    mirror = mirror_of(path)
    return sha256_file(path) if mirror is None else str(mirror.bucket.sha256(mirror.name(path)))


def stored_names(folder: Path) -> frozenset[str]:
    """Names of what lies right in a folder, in its bucket where it lives in one."""
    mirror = mirror_of(folder)
    if mirror is not None:
        return frozenset(name for names in mirror.bucket.level(mirror.name(folder)) for name in names)
    return frozenset(entry.name for entry in folder.iterdir()) if folder.is_dir() else frozenset()


def location(path: Path) -> str:
    """A file as messages name it: its URL, where it lives in a bucket."""
    mirror = mirror_of(path)
    return str(path) if mirror is None else mirror.url(path)

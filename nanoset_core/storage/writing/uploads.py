"""Upload files and whole outputs to the store of a `FileAccess`.

All functions do nothing, or only write to the folder, if the files of the access are in a local
folder instead of a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.requests import TRANSFERS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Store

_MAX_SINGLE_REQUESTS = 8
"""Files that are looked up in a store one by one; for more files, their folders are listed."""


def upload_files(
    access: FileAccess,
    paths: Iterable[Path],
    sha256: Mapping[Path, str | None] | None = None,
    *,
    stored_sizes: Mapping[str, int] | None = None,
) -> list[int]:
    """Upload files of an output from this machine to a bucket, several at the same time.

    Some files may be in the bucket already, as a listing shows:

        on this machine    in the bucket    what is done
        yes                no               it is uploaded
        yes                yes              it is uploaded, unless it is large and the same
        no                 yes              nothing: an earlier run has uploaded it, and it was
                                            then removed here to make room
        no                 no               MissingError

    Args:
        access: Access to the bucket. If the outputs are on a disk, nothing is done.
        paths: Paths of the files in the local folder.
        sha256: Path → sha256 that the file must have, as hex. Files with None are not checked.
        stored_sizes: A listing of the bucket: name of a file → bytes. By default, more than eight
            files are looked up in a listing, and fewer one by one; these must be on this machine.

    Returns:
        The bytes of each file; an empty list if the outputs are on a disk.

    Raises:
        MissingError: A file is neither on this machine nor in a listing of the bucket.
        StorageError: A file has another checksum.
    """
    store = access.origin  # the bucket
    if store is None:
        return []
    files = list(paths)
    if stored_sizes is None and len(files) > _MAX_SINGLE_REQUESTS:
        # To list the folders of the files takes fewer requests than to look up each file.
        stored_sizes = _sizes_next_to(access, files)
    uploader = _Uploader(access, store, sha256 or {}, stored_sizes)
    return in_parallel(uploader.upload, files, TRANSFERS_AT_ONCE)


@dataclass(frozen=True, slots=True)
class _Uploader:
    """Uploads files of the local folder to a store."""

    access: FileAccess
    store: Store
    checksums: Mapping[Path, str | None]
    """Path → sha256 that the file must have; other files are not checked."""
    stored_sizes: Mapping[str, int] | None
    """Name in the store → bytes, or None if the store was not listed."""

    def upload(self, path: Path) -> int:
        """Upload a file of the local folder, and return its bytes.

            it is on this machine      upload it, unless it is large and the bucket has it already
            it is only in the bucket   skip it: an earlier run has uploaded it
            it is in neither           an error

        Raises:
            MissingError: The file is neither in the folder nor in a listing of the bucket.
            StorageError: The file has another checksum.
        """
        if path.is_file():
            return self._upload_local(path)
        return self._size_of_earlier_upload(path)

    def _upload_local(self, path: Path) -> int:
        """Upload a file that is on this machine, and return its bytes.

        If the listing shows that the bucket lacks the file, the bucket is not asked for it.
        """
        name = self.access.name(path)
        size = path.stat().st_size  # after the upload, another process may remove the file
        is_new = self.stored_sizes is not None and name not in self.stored_sizes
        self.store.put_file(name, path, sha256=self.checksums.get(path), is_new=is_new)
        return size

    def _size_of_earlier_upload(self, path: Path) -> int:
        """Return the bytes of a file that was uploaded before, and then removed here to make room.

        Raises:
            MissingError: No listing shows that the bucket has the file.
        """
        name = self.access.name(path)
        if self.stored_sizes is None or name not in self.stored_sizes:
            raise MissingError(
                "a file of an output is neither on this machine nor in its store",
                where=self.access.url(path),
                remedy="run the command again, which rebuilds the file",
            )
        return self.stored_sizes[name]


def _sizes_next_to(access: FileAccess, files: Iterable[Path]) -> dict[str, int]:
    """Return the sizes of all objects in the folders of some files in a store.

    The folders are listed, unless the access has a listing of them.

    Returns:
        Name in the store → bytes, such as {"web/a.bin": 80}.
    """
    sizes: dict[str, int] = {}
    for folder in {path.parent for path in files}:
        sizes |= _sizes_below(access, folder)
    return sizes


def write_small_file(access: FileAccess, path: Path, data: bytes) -> None:
    """Write a small file to the local folder and to the bucket, unless it has these bytes already.

    If the outputs are on a disk, there is no bucket, and only the local file is written.

    Args:
        access: Access to the files.
        path: Path of the file in the local folder.
        data: Its bytes.
    """
    is_new = not path.exists() or read_regular(path) != data
    if is_new:
        write_atomic(path, data)

    # Upload the bytes, not the file, which another build may replace in the meantime.
    store = access.origin
    if store is None:
        return
    name = access.name(path)
    if is_new or store.read(name) != data:
        store.put(name, data)


def publish_folder(
    access: FileAccess,
    folder: Path,
    files: Mapping[str, str | None],
    manifest: str,
    *,
    is_new: bool = False,
) -> Mapping[str, int] | None:
    """Upload an output to a bucket: first its files, and then its manifest.

    Readers take an output for complete if it has a manifest, the JSON file that lists its files.
    So:

        1. if the bucket has another manifest in this place, delete it
        2. upload web.bin, web.idx and so on, except those that the bucket has already
        3. upload manifest.json

    Args:
        access: Access to the bucket. If the outputs are on a disk, nothing is done.
        folder: Local folder of the output.
        files: Name of each file within the folder → its sha256, or None if it is not known. The
            manifest is not one of them.
        manifest: Name of the manifest within the folder.
        is_new: Whether the bucket is known to have no manifest, so that it need not be asked.

    Returns:
        Name within the folder → bytes, of all files that are now known to be in the bucket; None if
        the outputs are on a disk.

    Raises:
        MissingError: A file is neither in the folder nor in the bucket.
    """
    store = access.origin
    if store is None:
        return None

    # Even if its manifest is new, the store may have files of the output that this machine lacks.
    has_all_copies = all((folder / name).is_file() for name in files)
    stored_sizes: dict[str, int] = {}  # name in the store → bytes
    if not is_new or not has_all_copies:
        stored_sizes = _sizes_below(access, folder)

    data = read_regular(folder / manifest)
    manifest_name = access.name(folder / manifest)
    has_manifest = manifest_name in stored_sizes
    is_published = has_manifest and store.read(manifest_name) == data
    if has_manifest and not is_published:
        store.delete(manifest_name)

    # Upload the files, and the manifest last.
    sha256_by_path = {folder / name: sha256 for name, sha256 in files.items()}
    sizes = upload_files(access, sha256_by_path, sha256_by_path, stored_sizes=stored_sizes)
    names = [access.name(path) for path in sha256_by_path]
    stored_sizes |= dict(zip(names, sizes, strict=True))
    if not is_published:
        store.put(manifest_name, data)
    stored_sizes[manifest_name] = len(data)
    drop_copies(access, sha256_by_path)

    prefix = f"{access.name(folder)}/"
    return {name.removeprefix(prefix): size for name, size in stored_sizes.items()}


def _sizes_below(access: FileAccess, folder: Path) -> dict[str, int]:
    """Return name in the store → bytes, of all files below a folder, with one listing."""
    place = access.name(folder)
    entries = access.listing_of(folder).below(place)
    return {f"{place}/{name}": entry.size for name, entry in entries}


def drop_copies(access: FileAccess, paths: Iterable[Path]) -> None:
    """Remove local copies of files that are in a bucket, if the user has limited the disk space for
    them.

    Args:
        access: Access to the bucket. Its `capacity` is the limit in bytes. If it is None, all
            copies are kept.
        paths: Paths of the copies, which need not exist.
    """
    if access.capacity is not None:
        for path in paths:
            path.unlink(missing_ok=True)

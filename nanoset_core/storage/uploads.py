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
from nanoset_core.storage.store import Store, in_parallel

_MAX_SINGLE_REQUESTS = 8
"""Files that are looked up in a store one by one; for more files, their folders are listed."""


def upload_files(
    access: FileAccess,
    paths: Iterable[Path],
    sha256: Mapping[Path, str | None] | None = None,
    *,
    stored_sizes: Mapping[str, int] | None = None,
) -> list[int]:
    """Upload files that were written to the local folder, several at the same time.

    Each file appears in the store as a whole or not at all. A file that has no copy in the folder
    must be in the store already.

    Args:
        access: Access to the store.
        paths: Paths of the files in the local folder.
        sha256: Checksums that the files must have, as hex. Files that are missing here, or have
            None, are not checked.
        stored_sizes: Name in the store → bytes, of all files in the folders of these files. By
            default the store is asked.

    Returns:
        The bytes of each file; an empty list if there is no store.

    Raises:
        MissingError: A file is neither in the folder nor in the store.
        StorageError: A file has another checksum.
    """
    store = access.origin
    if store is None:
        return []
    files = list(paths)
    if stored_sizes is None and len(files) > _MAX_SINGLE_REQUESTS:
        stored_sizes = _sizes_next_to(access, store, files)
    uploader = _Uploader(access, store, sha256 or {}, stored_sizes)
    return in_parallel(uploader.upload, files)


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
        """Upload a file if it has a copy in the local folder, and return its bytes.

        Raises:
            MissingError: The file is neither in the folder nor in the store.
            StorageError: The file has another checksum.
        """
        if not path.is_file():
            return _stored_size(self.access, path, self.stored_sizes)
        # Ask for the size before the upload: afterwards, another process may remove the copy to
        # make room.
        size = path.stat().st_size
        name = self.access.name(path)
        is_new = self.stored_sizes is not None and name not in self.stored_sizes
        self.store.put_file(name, path, sha256=self.checksums.get(path), is_new=is_new)
        return size


def _sizes_next_to(access: FileAccess, store: Store, files: Iterable[Path]) -> dict[str, int]:
    """List the folders of files in a store, and return name in the store → bytes."""
    sizes: dict[str, int] = {}
    for folder in {path.parent for path in files}:
        for stored in store.list(access.name(folder)):
            sizes[stored.name] = stored.size
    return sizes


def _stored_size(access: FileAccess, path: Path, stored_sizes: Mapping[str, int] | None) -> int:
    """Return the bytes of a file that has no copy, so that it must be in the store.

    Args:
        access: Access to the store.
        path: Path that a copy would have.
        stored_sizes: Name in the store → bytes, or None if the store was not listed.

    Raises:
        MissingError: The file is not known to be in the store.
    """
    name = access.name(path)
    if stored_sizes is None or name not in stored_sizes:
        raise MissingError(
            "a file of an output is neither on this machine nor in its store",
            where=access.url(path),
            remedy="run the command again, which rebuilds the file",
        )
    return stored_sizes[name]


def write_small_file(access: FileAccess, path: Path, data: bytes) -> None:
    """Write a small file to the local folder and to the store, unless it has these bytes already.

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
    """Upload an output: first its files, then its manifest, without which it does not exist.

    If the store has a manifest with other bytes, that manifest is deleted first: it describes other
    files than those that are going to be uploaded.

    Args:
        access: Access to the store.
        folder: Local folder of the output.
        files: Name of each file within the folder → its sha256, or None if it is not known. The
            manifest is not one of them.
        manifest: Name of the manifest within the folder.
        is_new: Whether the store is known to have no manifest, so that it need not be asked.

    Returns:
        Name within the folder → bytes, of all files that are now known to be in the store; None if
        there is no store.

    Raises:
        MissingError: A file is neither in the folder nor in the store.
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
    entries = access.listed(folder).below(place)
    return {f"{place}/{name}": entry.size for name, entry in entries}


def drop_copies(access: FileAccess, paths: Iterable[Path]) -> None:
    """Remove local copies of files that are in the store, if disk space is limited."""
    if access.capacity is not None:
        for path in paths:
            path.unlink(missing_ok=True)
